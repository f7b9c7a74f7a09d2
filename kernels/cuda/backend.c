// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the table that libweft_cuda.so exports.
//
// Every op goes through one door, op_run: it binds the device, refuses one that has failed, and
// notes the op on its stream, so that a failure seen later is told with a name. Ops only queue
// work: nothing here waits.
#include "kernels/cuda/device.h"

// Until the files that hold them are there.
#pragma weak op_matmul
#pragma weak op_elementwise
#pragma weak op_copy
#pragma weak op_metrics
#pragma weak op_clip
#pragma weak op_update
#pragma weak op_pieces
#pragma weak op_attention
#pragma weak op_dropout
#pragma weak op_normal

static const backend_op kernels[OP_COUNT] = {
    [OP_MATMUL] = op_matmul,
    [OP_SUM] = op_sum,
    [OP_CAST] = op_elementwise,
    [OP_ADD] = op_elementwise,
    [OP_SUB] = op_elementwise,
    [OP_MUL] = op_elementwise,
    [OP_SCALE] = op_elementwise,
    [OP_LOG] = op_elementwise,
    [OP_EXP] = op_elementwise,
    [OP_SOFTPLUS] = op_elementwise,
    [OP_SOFTPLUS_GRAD] = op_elementwise,
    [OP_DROPOUT] = op_dropout,
    [OP_NORMAL] = op_normal,
    [OP_DIV] = op_elementwise,
    [OP_RELU] = op_elementwise,
    [OP_RELU_GRAD] = op_elementwise,
    [OP_GELU] = op_elementwise,
    [OP_GELU_GRAD] = op_elementwise,
    [OP_TANH] = op_elementwise,
    [OP_TANH_GRAD] = op_elementwise,
    [OP_ROW_MAX] = op_rows,
    [OP_ROW_SUM_EXP] = op_rows,
    [OP_ROW_EXP_MUL] = op_rows,
    [OP_PICK] = op_rows,
    [OP_PICK_GRAD] = op_rows,
    [OP_ROW_ARGMAX] = op_rows,
    [OP_EQUAL] = op_elementwise,
    [OP_SILU] = op_elementwise,
    [OP_SILU_GRAD] = op_elementwise,
    [OP_SPLIT] = op_pieces,
    [OP_STACK] = op_pieces,
    [OP_EMBED] = op_embed,
    [OP_EMBED_GRAD] = op_embed,
    [OP_NORM] = op_norm,
    [OP_NORM_GRAD] = op_norm,
    [OP_NORM_WEIGHT_GRAD] = op_norm,
    [OP_ROTARY] = op_rotary,
    [OP_ATTENTION] = op_attention,
    [OP_ATTENTION_GRAD] = op_attention,
    [OP_CHAIN] = op_elementwise,
    [OP_ADD_NORM] = op_norm,
    [OP_NORM_GRAD_ADD] = op_norm,
    [OP_ROW_LOSS] = op_rows,
    [OP_ROW_LOSS_GRAD] = op_rows,
    [OP_LINEAR] = op_linear,
    [OP_COPY] = op_copy,
    [OP_SQNORM] = op_sqnorm,
    [OP_METRICS] = op_metrics,
    [OP_CLIP] = op_clip,
    [OP_SGD] = op_update,
    [OP_MOMENTUM] = op_update,
    [OP_ADAM] = op_update,
};

static int op_run(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = device_bind(q->device, e);
    q->last = c->op;
    q->any = true;
    return rc ? rc : kernels[c->op](q, c, e);
}

// What backend_check() sees: a door where there is a kernel.
static backend_op ops[OP_COUNT];
__attribute__((constructor)) static void fill_ops(void)
{
    for (int op = 0; op < OP_COUNT; op++)
        ops[op] = kernels[op] ? op_run : NULL;
}

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

extern const struct backend weft_backend;
__attribute__((visibility("default"))) const struct backend weft_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .alloc = memory_alloc,
    .free = memory_free,
    .adopt = memory_adopt,
    .host_alloc = memory_host_alloc,
    .host_free = memory_free,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .copy = stream_copy,
    .fill_zero = stream_zero,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .tune = algorithms_tune,
    .algorithms_import = algorithms_import,
    .algorithms_export = algorithms_export,
    .ops = ops,
    .many = many,
};
