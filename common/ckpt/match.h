// SPDX-License-Identifier: Apache-2.0
// Which tensors of a checkpoint become which parameters of a job (checkpoint.load): by their names,
// after renaming, with shapes that fit, as F32 or BF16. Pure; the client, the ranks and `weft eval`
// come to the same.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/job_sections.h"
#include "common/ckpt/manifest.h"

struct match_param { // of the job
    const char *name;
    struct shape shape;         // global
    int64_t unpadded[MAX_DIMS]; // how far each dimension reaches without its padding
    unsigned grows; // the vocabulary's dimensions, a bit each: may be longer than the checkpoint's
};

struct match {
    const struct manifest_tensor **from; // of each parameter; null: it is born as in a new job
    int taken, grown;                    // parameters that have one, and those longer than it
    int nborn, nunused;
    const char **born;   // parameters that have none
    const char **unused; // parameters of the checkpoint that none has
};

// ERR_INVALID: shapes that do not fit, two tensors for one parameter, or nothing is taken. All memory
// is the arena's.
int match_params(struct arena *a, const struct manifest *m, const struct job_load *load,
                 const struct match_param *params, int n, struct match *out, struct err *e);
// The tensor of the optimiser's state called KIND ("m") of the parameter that `from` is, or null.
const struct manifest_tensor *match_state(const struct manifest *m, const char *kind,
                                          const struct manifest_tensor *from);
// The part of box `b`, of a tensor with this unpadded size, that `from` has values for. False: none.
bool match_clip(const struct manifest_tensor *from, const int64_t *unpadded, const struct box *b,
                struct box *out);
// Values of `from` as they were read, n of them, become F32 where they lie: with room for that.
void match_widen(const struct manifest_tensor *from, int64_t n, void *values);
// The first parameter with a dimension of the vocabulary that is taken; null: none is.
const char *match_vocab(const struct match *m, const struct match_param *params, int n);
// A sentence with the first names of each list: "takes 10 of 12 parameters; …".
void match_print(const struct match *m, int n, struct buf *to);

// What a pattern makes of a name: each * of `from` stands for any text, and the n-th * of `to` for the
// same. Null: the name is not of this pattern.
const char *match_rename(struct arena *a, const struct job_rename *r, const char *name);
