// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the table that libweft_cuda.so exports.
//
// Every op is called through run_op, which binds the device, refuses one that has failed, and notes
// the op on its stream, so that a failure that is seen later can name it. Ops only queue work:
// nothing here waits.
#include "common/op/attention.h"
#include "kernels/cuda/cuda_gemm.h"

static const backend_op kernels[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, traits) [OP_##id] = op_##kernel,
#include "common/op/ops.def"
};

// Binds the device, notes the op, and checks the call.
static int begin_op(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = device_bind(q->device, e);
    q->last = c->op;
    q->any = true;
    return rc ? rc : op_check(c, e);
}

static int end_op(int rc, struct err *e)
{
    if (rc == ERR_UNSUPPORTED)
        (void)err_wrap(e, "cuda");
    return rc;
}

static int run_op(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = begin_op(q, c, e);
    return end_op(rc ? rc : kernels[c->op](q, c, e), e);
}

static const backend_op ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, traits) [OP_##id] = run_op,
#include "common/op/ops.def"
};

static int run_many(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    int rc = begin_op(q, calls, e);
    for (int k = 1; k < n && !rc; k++)
        rc = op_check(&calls[k], e);
    if (!rc)
        rc = op_is(calls->op, OP_IS_UPDATE) ? op_updates(q, calls, n, e)
                                            : op_sqnorms(q, calls, n, e);
    return end_op(rc, e);
}

static const backend_many many[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, traits) \
    [OP_##id] = (OP_RUNS_MANY & (traits)) ? run_many : NULL,
#include "common/op/ops.def"
};

// Only products and attention have a choice.
static int tune_op(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    int rc = begin_op(q, c, e);
    if (rc)
        return end_op(rc, e);
    if (op_is(c->op, OP_IS_ATTENTION))
        rc = attention_tune(q, c, e);
    else if (c->op == OP_MATMUL_SUM)
        rc = matmul_sum_tune(q, c, time, e);
    else if (op_is(c->op, OP_HAS_CHAIN) && op_is(c->op, OP_IS_PRODUCT))
        rc = linear_tune(q, c, time, e);
    else if (op_is(c->op, OP_IS_PRODUCT))
        rc = matmul_tune(q, c, time, e);
    return end_op(rc, e);
}

static const struct backend_graph graphs = {
    .begin = capture_begin,
    .end = capture_end,
    .launch = graph_launch,
    .destroy = graph_destroy,
};

static const struct backend_choice choices = {
    .tune = tune_op,
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
    .stream = {.create = cuda_stream_create,
               .destroy = cuda_stream_destroy,
               .sync = cuda_stream_sync,
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
