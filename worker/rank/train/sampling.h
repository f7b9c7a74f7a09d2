// SPDX-License-Identifier: Apache-2.0
// Samples: what a decoder answers to the job's prompt after an evaluation, for people to read.
// Inside worker/rank/train/ only.
//
// The sample program runs once a token, over a window of model.seq tokens: the prompt and what
// followed it, or the last model.seq of these. Nothing is kept from one token to the next, so a
// token costs a forward pass over the whole window; the head runs at one position only. Every rank
// gets all logits (one sum over the mesh) and chooses for itself (choice.h), with draws that depend
// on the job's seed and the token's position alone: all ranks go on with the same text, and a
// resumed run gives the same text again.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/job/job.h"
#include "worker/rank/train/inputs.h"

struct sampling {
    struct exec *exec; // borrowed
    const struct job *job;
    struct progress_page *page;
    struct arena arena;
    struct dataset shape; // of a row of the window; no file
    struct inputs inputs;
    int64_t batch, padded; // rows of the program, and logits of a row
    const void *logits;    // on the device
    float *host;           // the same
    int32_t *prompt, *ids; // ids: of each sample the prompt and what followed, a row of `room`
    int32_t *last, *scratch;
    int64_t nprompt, room, done; // done: tokens added so far
};

// A zeroed struct may be closed.
int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, struct err *e);
void sampling_close(struct sampling *s);
// Every rank takes part and comes to the same ids. A model that says what is no number ends the
// texts early, which is no error: `done` tells how long they are.
int sampling_run(struct sampling *s, struct err *e);
// What sample `k` added to the prompt.
void sampling_text(const struct sampling *s, int64_t k, struct buf *text);
