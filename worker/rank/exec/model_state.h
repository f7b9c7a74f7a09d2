// SPDX-License-Identifier: Apache-2.0
// The state of a job: the tensors that outlive a step, which are parameters and optimiser state. It
// is drawn from the seed, saved in parts and restored from a checkpoint, always by global index, so
// that the mesh does not matter. In a pipeline every rank knows the parts of all stages and holds
// those of its own stage.
#pragma once
#include "common/ckpt/deal.h"
#include "common/ckpt/load.h"
#include "common/ckpt/match.h"
#include "worker/rank/exec/exec.h"

struct state {
    struct exec *exec;
    // All shards of all tensors over the mesh, as the checkpoint deals them out.
    int nparts;
    struct deal_part *parts;
    const char **specs;
    const struct value **values; // part → the tensor
    void **local;                // part → its copy on this rank's device; null: none
};

// Everything lies in `a`, which must outlive the state.
int state_open(struct state *s, struct arena *a, const struct compiled *c, struct exec *exec,
               int rank, struct err *e);
// Draws the parameters by global index (initial_values.h), on `threads` threads; optimiser state is
// zero. This and state_restore() also make the parameters' copies in the compute dtype.
int state_init(struct state *s, uint64_t seed, int threads, struct err *e);
// What is taken of another training's checkpoint, over what state_init() drew.
struct state_source {
    struct load *from;
    const struct match_param *params;
    int nparams;
    const struct match *match; // of these
    bool optimizer;            // the state of what is taken too
};
// Rows that the checkpoint lacks stay as they were drawn, of the optimiser's state zero.
int state_take(struct state *s, const struct state_source *source, uint64_t seed, int threads,
               struct err *e);
// Reads the state from a checkpoint; without `optimizer` the optimiser's stays zero.
int state_restore(struct state *s, struct load *from, bool optimizer, struct err *e);
// Copies bytes of a part that this rank holds from device to host: snapshot_ops.copy.
int state_copy(void *state, int part, uint64_t at, void *to, uint64_t bytes, struct err *e);
