// SPDX-License-Identifier: Apache-2.0
// Samples: what a decoder answers to the job's prompt after an evaluation, for people to read.
// Inside worker/rank/train/ only.
//
// The sample program runs once for each token, over a window of model.seq tokens: the prompt and
// what followed it, or the last model.seq of these. Nothing is kept from one token to the next, so a
// token costs a forward pass over the whole window; only the head runs at one position. Every rank
// gets all logits (one sum over the mesh) and chooses for itself (choice.h), with draws that depend
// only on eval.sample.seed and the token's position. So all ranks continue the same text, and a
// resumed run gives the same text again.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/job/job.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/rank/train/inputs.h"

struct sampling {
    struct exec *exec; // borrowed
    const struct job *job;
    struct progress_page *page;
    struct arena arena;
    struct dataset shape; // says what a window looks like; it has no file
    struct inputs inputs;
    int64_t batch, padded; // rows of the program's logits, and how many a row has
    const void *logits;    // on the device
    float *host;           // the same logits on the host
    struct tokenizer *tokenizer;
    struct token_ids prompt;
    int32_t *ids;       // of each sample: the prompt and what followed it, a row of `room`
    int32_t *last;      // of each window of this rank: the position of its last token
    int32_t *scratch;   // choice_token()'s
    int64_t room, done; // done: tokens added so far
};

// A zeroed struct may be closed.
int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, struct err *e);
void sampling_close(struct sampling *s);
// Makes new samples. Every rank takes part and comes to the same ids. Logits that are not finite end
// all samples early, which is no error: `done` says how many tokens they have.
int sampling_run(struct sampling *s, struct err *e);
// Appends what sample `k` added to the prompt, as people are shown it.
void sampling_text(const struct sampling *s, int64_t k, struct buf *text);
