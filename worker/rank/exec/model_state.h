// SPDX-License-Identifier: Apache-2.0
// The state of a job: the tensors that outlive a step, parameters and optimiser state. Born from
// the seed, saved in parts, restored from a checkpoint; always by global index, so the mesh does
// not matter. Of a pipeline every rank knows the parts of all stages and holds those of its own.
#pragma once
#include "common/ckpt/deal.h"
#include "common/ckpt/load.h"
#include "worker/rank/exec/exec.h"

struct state {
    struct exec *exec;
    // All shards of all tensors over the mesh, as the checkpoint deals them out.
    int nparts;
    struct deal_part *parts;
    const char **specs;
    const struct value **values; // part → the tensor
    void **local; // part → this rank's copy of it on the device, null when it has none
};

// Everything lies in `a`, which must outlive the state.
int state_open(struct state *s, struct arena *a, const struct compiled *c, struct exec *exec,
               int rank, struct err *e);
// Parameters are drawn (design: promise 5), optimiser state is zero.
int state_init(struct state *s, uint64_t seed, struct err *e);
// What was saved; both leave the parameters' copies as the parameters are.
int state_restore(struct state *s, struct load *from, struct err *e);
// A run of bytes of a part this rank holds, device → host: snapshot_ops.copy.
int state_copy(void *state, int part, uint64_t at, void *to, uint64_t bytes, struct err *e);
