// SPDX-License-Identifier: Apache-2.0
// One op called on a backend and in the reference. See rig.h.
#include "tests/ops/rig.h"

#include "common/compile/graph/optable.h"
#include "common/op/attention.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"

// ---- a device under test -----------------------------------------------------------------------

const char *rig_backend(void)
{
    const char *set = getenv("WEFT_RIG");
    return set && set[0] ? set : "cpu";
}

bool rig_is_cuda(void)
{
    return strcmp(rig_backend(), "cuda") == 0;
}

void rig_find_backend(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    assert_true(n > 0);
    path[n] = 0;
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = 0;
    if (rig_is_cuda())
        strcat(path, "/tests/cuda");
    setenv("WEFT_BACKEND_DIR", path, 0);
}

int rig_set_up(void **state)
{
    (void)state;
    rig_find_backend();
    return 0;
}

static struct rig opened; // the first that is not closed: a test that failed leaves its own behind

void rig_open(struct rig *r, int threads, const char *isa)
{
    struct err e = {0};
    if (isa)
        setenv("WEFT_CPU_ISA", isa, 1);
    else
        unsetenv("WEFT_CPU_ISA");
#ifndef __SANITIZE_ADDRESS__ // which sees more than zones do
    setenv("WEFT_CUDA_GUARD", "1", 0);
#endif
    const struct device_options o = {.threads = threads, .deterministic = true};
    if (backend_load(rig_backend(), &r->backend, &e) ||
        r->backend->device.open(&o, &r->device, &e) ||
        r->backend->stream.create(r->device, STREAM_USUAL, &r->q, &e))
        fail_msg("%s", e.text);
    r->backend->device.info(r->device, &r->info);
    unsetenv("WEFT_CPU_ISA");
    if (!opened.device)
        opened = *r;
}

void rig_close(struct rig *r)
{
    if (opened.device == r->device)
        opened.device = NULL;
    r->backend->device.close(r->device);
}

void *rig_memory(const struct rig *r, const void *from, size_t bytes)
{
    void *p = NULL;
    struct err e = {0};
    int rc = 0;
    if (r->info.shares_host)
        p = malloc(bytes ? bytes : 1);
    else
        rc = r->backend->memory.alloc(r->device, bytes, &p, &e);
    rc = rc || !from ? rc : r->backend->stream.copy(r->q, p, from, bytes, &e);
    if (rc || !p)
        fail_msg("%s", e.text);
    return p;
}

void rig_read(const struct rig *r, void *to, const void *memory, size_t bytes)
{
    struct err e = {0};
    if (r->backend->stream.copy(r->q, to, memory, bytes, &e) || r->backend->stream.sync(r->q, &e))
        fail_msg("%s", e.text);
}

void rig_free(const struct rig *r, void *memory)
{
    if (r->info.shares_host)
        free(memory);
    else
        r->backend->memory.free(r->device, memory);
}

// ---- a case ------------------------------------------------------------------------------------

static enum dtype dtype_in(enum op op, int k)
{
    // The operands that are ids or positions, a bit each.
    static const unsigned ids[OP_COUNT] = {
        [OP_EQUAL] = 3,         [OP_PICK] = 2,     [OP_PICK_GRAD] = 1,     [OP_EMBED] = 1,
        [OP_EMBED_GRAD] = 1,    [OP_ROTARY] = 2,   [OP_ROTARY_PACKED] = 2, [OP_DROPOUT] = 6,
        [OP_NORMAL] = 3,        [OP_ROW_LOSS] = 2, [OP_ROW_LOSS_GRAD] = 8, [OP_TOPK_GRAD] = 1,
        [OP_SLOTS] = 5,         [OP_DISPATCH] = 2, [OP_COMBINE] = 2,       [OP_SLOT_DOT] = 2,
        [OP_ROW_LOSS_BOTH] = 2, [OP_APPEND] = 12,  [OP_RING] = 1};
    return ids[op] >> k & 1 ? DT_I32 : DT_F32;
}

static enum dtype dtype_out(enum op op, int k)
{
    bool ids = op == OP_ROW_ARGMAX || op == OP_RING || (op == OP_TOPK && k == 1) ||
               (op == OP_SLOTS && k == 0);
    return ids ? DT_I32 : DT_F32;
}

// Attention's positions lie behind what it has a gradient for, and behind dy.
static void mark_positions(struct rig_case *c)
{
    struct attention_operands o;
    if (!op_is(c->op, OP_IS_ATTENTION))
        return;
    assert_int_equal(attention_operands(c->op, c->nin, &o), 0);
    for (int k = o.at_q; k < c->nin; k++)
        c->in[k].dtype = DT_I32;
}

// Reads one operand's letters; returns what lies behind them.
static const char *operand(struct ref_tensor *t, int8_t *label, const char *text,
                           const int64_t ext[26], struct arena *a)
{
    while (*text >= 'a' && *text <= 'z') {
        label[t->shape.n] = (int8_t)(*text - 'a');
        t->shape.dim[t->shape.n++] = ext[*text++ - 'a'];
    }
    t->v = arena_array(a, double, (size_t)shape_count(&t->shape));
    return text;
}

// Of an op with any number of them: those that are written, at least `least`.
static int count_outputs(const char *einsum, int least)
{
    int n = 1;
    for (const char *at = strchr(einsum, '>'); *at; at++)
        n += *at == ',';
    return n > least ? n : least;
}

void rig_case(struct rig_case *c, struct arena *a, enum op op, const char *einsum,
              const int64_t ext[26])
{
    *c = (struct rig_case){.op = op, .attr = {.scale = 1, .lr_scale = 1}, .nout = op_outputs(op)};
    if (c->nout < 0)
        c->nout = count_outputs(einsum, op_is(op, OP_IS_PACKED) ? 1 : 3);
    for (const char *at = einsum;; at++) {
        c->in[c->nin].dtype = dtype_in(op, c->nin);
        at = operand(&c->in[c->nin], c->attr.label[c->nin], at, ext, a);
        c->nin++;
        if (*at == '-') {
            einsum = at + 2;
            break;
        }
    }
    for (int k = 0; k < c->nout; k++) {
        c->start[k].dtype = dtype_out(op, k);
        const char *end = operand(&c->start[k], c->attr.label[c->nin + k], einsum, ext, a);
        einsum = *end == ',' ? end + 1 : einsum;
        rig_fill(&c->start[k], 77, -1, 1); // what an op must overwrite, or add to
    }
    c->attr.labels = 26;
    mark_positions(c);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

void rig_fill(struct ref_tensor *t, uint64_t seed, double lo, double hi)
{
    const int64_t n = shape_count(&t->shape);
    for (int64_t i = 0; i < n; i++) {
        double u = (double)(mix(seed * 1000003u + (uint64_t)i + 1) >> 40) * 0x1p-24;
        double x = lo + u * (hi - lo);
        t->v[i] = t->dtype == DT_F32    ? (double)(float)x
                  : t->dtype == DT_BF16 ? ref_bf16(x)
                                        : floor(x);
    }
}

void rig_attend(struct rig_case *c)
{
    struct attention_operands o;
    struct ref_tensor in[OP_MAX_IN], *out;
    int n = 0;
    if (!attention_is_grad(c->op))
        return;
    assert_int_equal(attention_operands(c->op, c->nin, &o), 0);
    for (int k = 0; k < c->nin; k++)
        if (k < o.dy || k >= o.at_q)
            in[n++] = c->in[k];
    out = &c->in[o.y];
    if (op_is(c->op, OP_IS_PACKED))
        ref_attention_packed(false, &c->attr, in, n, out);
    else
        ref_attention(OP_ATTENTION, &c->attr, in, n, out, ATTENTION_OUTPUTS);
    for (int k = 0; k < ATTENTION_OUTPUTS; k++)
        for (int64_t i = 0; i < shape_count(&out[k].shape); i++)
            out[k].v[i] =
                out[k].dtype == DT_BF16 ? ref_bf16(out[k].v[i]) : (double)(float)out[k].v[i];
}

// ---- running -----------------------------------------------------------------------------------

// The number is a bf16: the upper half of its f32.
static uint16_t bf16_bits(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double bf16_number(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void store(void *to, const struct ref_tensor *t)
{
    const int64_t n = shape_count(&t->shape);
    for (int64_t i = 0; i < n; i++) {
        if (t->dtype == DT_F32)
            ((float *)to)[i] = (float)t->v[i];
        else if (t->dtype == DT_I32)
            ((int32_t *)to)[i] = (int32_t)t->v[i];
        else if (t->dtype == DT_BF16)
            ((uint16_t *)to)[i] = bf16_bits(t->v[i]);
        else
            ((uint8_t *)to)[i] = (uint8_t)t->v[i];
    }
}

enum { BEHIND = 48, AROUND = 0x5a }; // bytes behind an operand that is shifted, and what they are

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)shape_count(&t->shape) * dtype_size(t->dtype);
}

// The operand's buffer and its size.
static char *buffer_of(const struct tensor *t, int shift, size_t *bytes)
{
    size_t before = (size_t)shift * dtype_size(t->dtype);
    *bytes = before + bytes_of(t) + (shift ? BEHIND : 0);
    return (char *)t->data - before;
}

static struct tensor upload(const struct rig *r, const struct ref_tensor *t, int shift)
{
    struct tensor out = {.dtype = t->dtype, .shape = t->shape};
    size_t before = (size_t)shift * dtype_size(t->dtype);
    size_t bytes = before + bytes_of(&out) + (shift ? BEHIND : 0);
    char *host = malloc(bytes);
    assert_non_null(host);
    memset(host, AROUND, bytes);
    store(host + before, t);
    out.data = (char *)rig_memory(r, host, bytes) + before;
    free(host);
    return out;
}

static double *download(const struct rig *r, const struct tensor *t, int shift, struct arena *a)
{
    int64_t n = shape_count(&t->shape);
    double *v = arena_array(a, double, (size_t)n);
    size_t bytes, before = (size_t)shift * dtype_size(t->dtype);
    const char *buffer = buffer_of(t, shift, &bytes);
    char *whole = malloc(bytes);
    assert_non_null(whole);
    rig_read(r, whole, buffer, bytes);
    const size_t end = before + bytes_of(t);
    for (size_t i = before ? 0 : end; i < bytes; i = i + 1 == before ? end : i + 1)
        if (whole[i] != AROUND)
            fail_msg("byte %zd around an output was written", (ssize_t)i - (ssize_t)before);
    const void *host = whole + before;
    for (int64_t i = 0; i < n; i++)
        v[i] = t->dtype == DT_F32    ? (double)((const float *)host)[i]
               : t->dtype == DT_BF16 ? bf16_number(((const uint16_t *)host)[i])
               : t->dtype == DT_U8   ? ((const uint8_t *)host)[i]
                                     : ((const int32_t *)host)[i];
    free(whole);
    return v;
}

static void operand_free(const struct rig *r, const struct tensor *t, int shift)
{
    size_t bytes;
    rig_free(r, buffer_of(t, shift, &bytes));
}

// The input that output k is written over: the one that the case names or p, then m, v behind the
// gradient; of a chain the first, the third; the loss's gradient over the logits.
static int input_of(const struct rig_case *c, int output)
{
    return output && c->op != OP_ROW_LOSS_BOTH ? output + 1 : c->over;
}

// Of several outputs only those of an update all lie over inputs, a chain's first two, and the last
// of the loss.
static bool over_input(const struct rig_case *c, int output)
{
    bool update = op_is(c->op, OP_IS_UPDATE) && output < op_outputs(c->op);
    bool chain = c->op == OP_CHAIN && output == 1;
    if (c->op == OP_ROW_LOSS_BOTH)
        return c->in_place && output == 3;
    return c->in_place && (output == 0 || update || chain);
}

// What the compiler's table would give it, to the byte.
static size_t workspace_of(const struct rig_case *c)
{
    struct op_call call = {.op = c->op, .attr = &c->attr, .nin = c->nin, .nout = c->nout};
    for (int k = 0; k < c->nin; k++)
        call.in[k] = (struct tensor){.dtype = c->in[k].dtype, .shape = c->in[k].shape};
    for (int k = 0; k < c->nout; k++)
        call.out[k] = (struct tensor){.dtype = c->start[k].dtype, .shape = c->start[k].shape};
    enum backend_kind b = rig_is_cuda() ? BACKEND_CUDA : BACKEND_CPU;
    return c->op == OP_COPY ? 0 : op_workspace(&call, b);
}

static int print_operand(const struct ref_tensor *t, char *to, size_t room)
{
    char shape[120] = "";
    size_t used = 0;
    for (int d = 0; d < t->shape.n; d++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", d ? "x" : "",
                                 (long long)t->shape.dim[d]);
    return snprintf(to, room, "%s %s", shape, dtype_name(t->dtype));
}

void rig_describe(const struct rig_case *c, char *to, size_t room)
{
    size_t used = 0;
    *to = 0;
    for (int k = 0; k < c->nin + c->nout && used < room; k++) {
        used += (size_t)snprintf(to + used, room - used, "%s",
                                 k == c->nin ? " -> "
                                 : k         ? ", "
                                             : "");
        if (used < room)
            used += (size_t)print_operand(k < c->nin ? &c->in[k] : &c->start[k - c->nin], to + used,
                                          room - used);
    }
}

bool rig_run(const struct rig *r, const struct rig_case *c, struct arena *a,
             double *out[OP_MAX_OUT])
{
    char operands[400];
    struct op_call call = {
        .op = c->op, .attr = &c->attr, .nin = c->nin, .nout = c->nout, .accumulate = c->accumulate};
    struct err e = {0};
    call.workspace_bytes = workspace_of(c);
    call.workspace = rig_memory(r, NULL, call.workspace_bytes);
    for (int k = 0; k < c->nin; k++)
        call.in[k] = upload(r, &c->in[k], c->shift[k]);
    for (int k = 0; k < c->nout; k++)
        call.out[k] = over_input(c, k) ? call.in[input_of(c, k)]
                                       : upload(r, &c->start[k], c->shift[c->nin + k]);
    int rc = r->backend->op.run[c->op](r->q, &call, &e);
    rig_describe(c, operands, sizeof operands);
    if (r->backend->stream.sync(r->q, rc ? NULL : &e))
        fail_msg("%s %s: %s", op_name(c->op), operands, e.text);
    if (rc)
        rig_wrong("%s %s: %s", op_name(c->op), operands, e.text);
    for (int k = 0; k < c->nout; k++) {
        int shift = c->shift[over_input(c, k) ? input_of(c, k) : c->nin + k];
        out[k] = download(r, &call.out[k], shift, a);
        for (int64_t i = 0; rc && i < shape_count(&call.out[k].shape); i++)
            out[k][i] = NAN;
        if (!over_input(c, k))
            operand_free(r, &call.out[k], shift);
    }
    for (int k = 0; k < c->nin; k++)
        operand_free(r, &call.in[k], c->shift[k]);
    rig_free(r, call.workspace);
    return !rc;
}

void rig_reference(const struct rig_case *c, struct arena *a, double *out[OP_MAX_OUT])
{
    struct ref_tensor to[OP_MAX_OUT];
    for (int k = 0; k < c->nout; k++) {
        size_t n = (size_t)shape_count(&c->start[k].shape);
        to[k] = c->start[k];
        to[k].v = out[k] = arena_array(a, double, n);
        memcpy(to[k].v, c->start[k].v, n * sizeof *to[k].v);
    }
    ref_op(c->op, &c->attr, c->in, c->nin, to, c->nout, c->accumulate);
    for (int k = 0; k < c->nout; k++)
        for (int64_t i = 0, n = shape_count(&to[k].shape); i < n && to[k].dtype == DT_BF16; i++)
            to[k].v[i] = ref_bf16(to[k].v[i]);
}

static bool close_enough(double got, double want, double rtol, double atol)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= atol + rtol * fabs(want);
}

void rig_compare(const char *what, const double *got, const double *want, int64_t n, double rtol,
                 double atol)
{
    int64_t wrong = 0, first = 0, worst = 0;
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (close_enough(got[i], want[i], rtol, atol))
            continue;
        double off = fabs(got[i] - want[i]) / (atol + rtol * fabs(want[i]));
        first = wrong++ ? first : i;
        if (!isnan(most) && !(off <= most)) { // a NaN is the worst
            most = off;
            worst = i;
        }
    }
    if (wrong)
        rig_wrong("%s: element %lld of %lld is %.9g, not %.9g; %lld are wrong, the worst is %lld: "
                  "%.9g, not %.9g, %.3g times the %.3g and %.3g of it that are allowed",
                  what, (long long)first, (long long)n, got[first], want[first], (long long)wrong,
                  (long long)worst, got[worst], want[worst], most, atol, rtol);
}

// ---- what is wrong -----------------------------------------------------------------------------

enum { SAID_MOST = 40 }; // of one test

static struct {
    const struct CMUnitTest *tests; // null: no group runs
    size_t at;                      // of the test that runs, or ran last
    bool began;
    int wrong;
} group;

void rig_wrong(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!group.tests)
        fail_msg("%s", text);
    if (group.wrong++ < SAID_MOST)
        print_error("[  ERROR   ] --- %s\n", text);
}

static bool has_failed(void)
{
    struct err e = {0};
    return rig_is_cuda() && opened.device && opened.backend->stream.sync(opened.q, &e);
}

// By now all is said of the test before.
static int test_begin(void **state)
{
    if (group.began && has_failed()) {
        setenv("WEFT_TEST_AFTER", group.tests[group.at].name, 1);
        setenv("WEFT_TEST_FAILED", "1", 1);
        fflush(NULL);
        execl("/proc/self/exe", "tests", (char *)NULL);
        fail_msg("cannot start the tests again behind %s", group.tests[group.at].name);
    }
    group.at += group.began;
    group.began = true;
    group.wrong = 0;
    return group.tests[group.at].setup_func ? group.tests[group.at].setup_func(state) : 0;
}

static int test_end(void **state)
{
    const CMFixtureFunction end = group.tests[group.at].teardown_func;
    int rc = end ? end(state) : 0;
    if (group.wrong)
        fail_msg("%d results are wrong", group.wrong);
    return rc;
}

int rig_run_group(const char *name, const struct CMUnitTest *tests, size_t n,
                  int (*begin)(void **state), int (*end)(void **state))
{
    struct CMUnitTest *own = calloc(n + 1, sizeof *own);
    const char *after = getenv("WEFT_TEST_AFTER");
    size_t first = 0;
    if (!own)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0); // who is killed has said which test it was in
    for (size_t k = 0; k < n; k++) {
        own[k] = tests[k];
        own[k].setup_func = test_begin;
        own[k].teardown_func = test_end;
        first = after && strcmp(tests[k].name, after) == 0 ? k + 1 : first;
    }
    group.tests = tests + first;
    int failed = _cmocka_run_group_tests(name, own + first, n - first, begin, end);
    group.tests = NULL;
    free(own);
    return failed + (getenv("WEFT_TEST_FAILED") != NULL);
}
