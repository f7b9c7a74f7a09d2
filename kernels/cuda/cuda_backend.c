// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the table that libweft_cuda.so exports.
//
// Every op goes through one door, op_run: it binds the device, refuses one that has failed, and
// notes the op on its stream, so that a failure seen later is told with a name. Ops only queue
// work: nothing here waits.
#include "kernels/cuda/cuda_device.h"

// X(op, kernel)
#define OPS(X)                       \
    X(MATMUL, op_matmul)             \
    X(SUM, op_sum)                   \
    X(CAST, op_elementwise)          \
    X(ADD, op_elementwise)           \
    X(SUB, op_elementwise)           \
    X(MUL, op_elementwise)           \
    X(SCALE, op_elementwise)         \
    X(LOG, op_elementwise)           \
    X(EXP, op_elementwise)           \
    X(SOFTPLUS, op_elementwise)      \
    X(SOFTPLUS_GRAD, op_elementwise) \
    X(DROPOUT, op_dropout)           \
    X(NORMAL, op_normal)             \
    X(DIV, op_elementwise)           \
    X(RELU, op_elementwise)          \
    X(RELU_GRAD, op_elementwise)     \
    X(GELU, op_elementwise)          \
    X(GELU_GRAD, op_elementwise)     \
    X(TANH, op_elementwise)          \
    X(TANH_GRAD, op_elementwise)     \
    X(ROW_MAX, op_rows)              \
    X(ROW_SUM_EXP, op_rows)          \
    X(ROW_EXP_MUL, op_rows)          \
    X(PICK, op_rows)                 \
    X(PICK_GRAD, op_rows)            \
    X(ROW_ARGMAX, op_rows)           \
    X(EQUAL, op_elementwise)         \
    X(SILU, op_elementwise)          \
    X(SILU_GRAD, op_elementwise)     \
    X(SPLIT, op_pieces)              \
    X(STACK, op_pieces)              \
    X(EMBED, op_embed)               \
    X(EMBED_GRAD, op_embed)          \
    X(NORM, op_norm)                 \
    X(NORM_GRAD, op_norm)            \
    X(NORM_WEIGHT_GRAD, op_norm)     \
    X(ROTARY, op_rotary)             \
    X(ATTENTION, op_attention)       \
    X(ATTENTION_GRAD, op_attention)  \
    X(CHAIN, op_elementwise)         \
    X(ADD_NORM, op_norm)             \
    X(NORM_GRAD_ADD, op_norm)        \
    X(ROW_LOSS, op_rows)             \
    X(ROW_LOSS_GRAD, op_rows)        \
    X(LINEAR, op_linear)             \
    X(COPY, op_copy)                 \
    X(SQNORM, op_sqnorm)             \
    X(METRICS, op_metrics)           \
    X(CLIP, op_clip)                 \
    X(SGD, op_update)                \
    X(MOMENTUM, op_update)           \
    X(ADAM, op_update)

#define KERNEL_OF(id, kernel) [OP_##id] = (kernel),
static const backend_op kernels[OP_COUNT] = {OPS(KERNEL_OF)};

static int op_run(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = device_bind(q->device, e);
    q->last = c->op;
    q->any = true;
    return rc ? rc : kernels[c->op](q, c, e);
}

// What backend_check() sees: the door, where there is a kernel behind it.
#define DOOR_OF(id, kernel) [OP_##id] = op_run,
static const backend_op ops[OP_COUNT] = {OPS(DOOR_OF)};

static int updates_run(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    int rc = device_bind(q->device, e);
    q->last = calls->op;
    q->any = true;
    return rc ? rc : op_updates(q, calls, n, e);
}

static const backend_many many[OP_COUNT] = {
    [OP_SGD] = updates_run,
    [OP_MOMENTUM] = updates_run,
    [OP_ADAM] = updates_run,
};

static const struct backend_graph graphs = {
    .begin = capture_begin,
    .end = capture_end,
    .launch = graph_launch,
    .destroy = graph_destroy,
};

static const struct backend_choice choices = {
    .tune = algorithms_tune,
    .read = algorithms_read,
    .write = algorithms_write,
};

extern const struct backend weft_backend;
__attribute__((visibility("default"))) const struct backend weft_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .device = {.count = device_count,
               .open = device_open,
               .close = device_close,
               .info = device_info},
    .memory = {.alloc = memory_alloc,
               .free = memory_free,
               .adopt = memory_adopt,
               .host_alloc = memory_host_alloc,
               .host_free = memory_free},
    .stream = {.create = stream_create,
               .destroy = stream_destroy,
               .sync = stream_sync,
               .copy = stream_copy,
               .fill_zero = stream_fill_zero,
               .mark = stream_mark},
    .event = {.create = event_create,
              .destroy = event_destroy,
              .record = event_record,
              .wait = event_wait,
              .query = event_query,
              .sync = event_sync},
    .graph = &graphs,
    .choice = &choices,
    .op = {.run = ops, .run_many = many},
};
