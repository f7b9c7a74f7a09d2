// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN, in bf16 and without dropout. A query sees its own position and all before it,
// or a window that ends with its own position, or all keys. Inside kernels/cuda/ only.
//
// Built once for a shape (sdpa_new finds an engine and compiles it: seconds), run as often as
// wanted. A gradient reads what its forward made: y and the log-sum-exp.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cudnn.h"

// The device to build for: that of a handle, or one that is only described (for tests: such a plan
// cannot be run).
struct sdpa_on {
    const struct cudnn *api;
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t device;
};

// Operands lie as [batch, seq, heads, elements of a head], those that are packed beside each other in
// one row a position. One run may serve a part of the batch and of the heads.
struct sdpa_shape {
    int64_t batch, seq, heads, kv_heads;        // of a run
    int64_t q_pitch, k_pitch, v_pitch, y_pitch; // elements from a position to the next
    int64_t d, e;   // elements of a head of queries and keys, and of values
    bool ahead;     // a query sees all keys
    int64_t window; // how many positions it sees; 0: as many as there are
    bool cap;       // scores pass a tanh
    bool grad;
    bool deterministic; // engines that may give other bits the next time are left out
};

struct sdpa_operands {
    const void *q, *k, *v, *dy;
    void *y, *dq, *dk, *dv;
    float *lse; // packed: [batch, heads, seq] of the run
    float scale, cap;
};

struct sdpa;

// Null when no engine serves the shape with at most `most` bytes of scratch; `why` (room bytes)
// then says so, or what cuDNN said.
struct sdpa *sdpa_new(const struct sdpa_on *on, const struct sdpa_shape *s, size_t most, char *why,
                      size_t room);
void sdpa_free(struct sdpa *p);
size_t sdpa_bytes(const struct sdpa *p); // of scratch; its address must be a multiple of 256
bool sdpa_varies(const struct sdpa *p);  // the same run may give other bits the next time
// Queues a run on the handle's stream. 0 or cuDNN's status.
cudnnStatus_t sdpa_run(const struct sdpa *p, const struct sdpa_operands *o, void *scratch);

// ---- sdpa_graph.c: the graphs that cuDNN gets --------------------------------------------------

// The operands' names in a graph; SCALE, HIDDEN, WINDOW, CAP and ONE are numbers that lie on the
// host.
enum sdpa_name {
    SDPA_Q = 1,
    SDPA_K,
    SDPA_V,
    SDPA_Y,
    SDPA_LSE, // ln Σ exp of a row's scores, f32 [batch, heads, seq]
    SDPA_DY,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_MEAN,   // Σ y·dy of a row, f32 like the log-sum-exp
    SDPA_DQ_F32, // dq is summed here, in an order that varies, [batch, heads, seq, d]
    SDPA_SCALE,
    SDPA_HIDDEN, // the score of a key that is not seen
    SDPA_WINDOW, // how many positions a query sees, i32
    SDPA_CAP,    // of the scores
    SDPA_ONE,
    SDPA_NAMES
};

// All descriptors that a graph or plan is made of; they live as long as it does.
enum { SDPA_DESCRIPTORS = 160 };
struct sdpa_made {
    const struct cudnn *api;
    cudnnBackendDescriptor_t all[SDPA_DESCRIPTORS];
    int n;
    cudnnStatus_t status; // the first failure; after it all calls do nothing
    char said[160];       // what cuDNN says about that failure
};

// Returns the graph of a forward or, if the shape is of one, of a gradient. Null: see m->status.
cudnnBackendDescriptor_t sdpa_graph(struct sdpa_made *m, const struct sdpa_on *on,
                                    const struct sdpa_shape *s);
void sdpa_made_clear(struct sdpa_made *m);

// Begins a descriptor, sets an attribute of it, and finalizes it. Once one of these has failed, as
// m->status says, they do nothing.
cudnnBackendDescriptor_t made_new(struct sdpa_made *m, cudnnBackendDescriptorType_t type);
void made_set(struct sdpa_made *m, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t n, const void *values);
void made_end(struct sdpa_made *m, cudnnBackendDescriptor_t d);
