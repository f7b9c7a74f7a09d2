// SPDX-License-Identifier: Apache-2.0
// The updates of many parameters in one call: each as it would be alone, bit by bit. And the copy
// in bf16 that an update may write: what a cast of the new parameter would be. And the norm of many
// gradients in one call.
#include "tests/ops/everywhere.h"

// More than one launch takes, of lengths around what a thread or a block gets.
enum { UPDATES = 60 };
static const int64_t lengths[] = {1, 3, 4097, 33, 257, 2, 1024, 5};

struct bank { // all that the calls of an op touch, in one buffer: clip and hyper, then the operands
    struct op_call call[UPDATES];
    struct op_attr attr[UPDATES];
    char *memory;
    size_t bytes;
    char *halves; // the copies, one behind the other; null: none is asked for
    size_t half_bytes;
};
enum { STEP = CLIP_SLOTS + HYPER_SLOTS };

// Those that write a copy: each length is among them, each place in a vector of 8.
static bool copied(int k)
{
    return k % 3 == 0;
}

static int64_t length_of(int k)
{
    return lengths[(size_t)k % (sizeof lengths / sizeof *lengths)];
}

// What an update's vectors hold before it; to be freed.
static float *numbers(int vectors, bool skip, size_t *bytes)
{
    const float step[STEP] = {[CLIP_SCALE] = 0.5f,
                              [CLIP_SKIP] = skip,
                              [CLIP_SLOTS + HYPER_LR] = 0.01f,
                              [CLIP_SLOTS + HYPER_BIAS1] = 1.5f,
                              [CLIP_SLOTS + HYPER_BIAS2] = 1.25f};
    struct ref_tensor x = {.dtype = DT_F32, .shape = {1, {STEP}}};
    for (int k = 0; k < UPDATES; k++)
        x.shape.dim[0] += vectors * length_of(k);
    size_t n = (size_t)x.shape.dim[0];
    float *v = malloc(n * sizeof *v);
    x.v = malloc(n * sizeof *x.v);
    assert_true(v && x.v);
    rig_fill(&x, 1, 0, 1);
    for (size_t i = 0; i < n; i++)
        v[i] = i < STEP ? step[i] : (float)x.v[i];
    free(x.v);
    *bytes = n * sizeof *v;
    return v;
}

static struct tensor vector(char **at, int64_t n)
{
    struct tensor t = {.dtype = DT_F32, .shape = {1, {n}}, .data = *at};
    *at += (size_t)n * sizeof(float);
    return t;
}

static void copies_open(const struct rig *r, struct bank *b)
{
    b->half_bytes = 0;
    for (int k = 0; k < UPDATES; k++)
        b->half_bytes += copied(k) ? sizeof(uint16_t) * (size_t)length_of(k) : 0;
    uint16_t *zeros = calloc(1, b->half_bytes);
    assert_non_null(zeros);
    char *at = b->halves = rig_memory(r, zeros, b->half_bytes);
    for (int k = 0; k < UPDATES; k++) {
        struct op_call *to = &b->call[k];
        if (!copied(k))
            continue;
        to->out[to->nout++] = (struct tensor){at, DT_BF16, {1, {length_of(k)}}};
        at += sizeof(uint16_t) * (size_t)length_of(k);
    }
    free(zeros);
}

static uint16_t *copies_close(const struct rig *r, struct bank *b)
{
    uint16_t *v = malloc(b->half_bytes);
    assert_non_null(v);
    rig_read(r, v, b->halves, b->half_bytes);
    rig_free(r, b->halves);
    return v;
}

// Decay and rate differ from parameter to parameter, what all of a job share differs once.
static void bank_open(const struct rig *r, enum op op, const float *from, size_t bytes,
                      struct bank *b)
{
    int nout = op_outputs(op);
    b->bytes = bytes;
    char *at = b->memory = rig_memory(r, from, bytes);
    struct tensor clip = vector(&at, CLIP_SLOTS), hyper = vector(&at, HYPER_SLOTS);
    for (int k = 0; k < UPDATES; k++) {
        struct op_call *to = &b->call[k];
        b->attr[k] = (struct op_attr){.beta1 = 0.9,
                                      .beta2 = k == 20 ? 0.5 : 0.95,
                                      .eps = 1e-8f,
                                      .decay = k % 3 ? 0 : 0.1f,
                                      .lr_scale = k % 5 ? 1 : 0.25f};
        *to = (struct op_call){.op = op, .attr = &b->attr[k], .nin = nout + 3, .nout = nout};
        for (int i = 0; i <= nout; i++)
            to->in[i] = vector(&at, length_of(k));
        to->in[nout + 1] = clip;
        to->in[nout + 2] = hyper;
        for (int o = 0; o < nout; o++)
            to->out[o] = to->in[o ? o + 1 : 0];
    }
}

static float *bank_close(const struct rig *r, struct bank *b)
{
    float *v = malloc(b->bytes);
    assert_non_null(v);
    rig_read(r, v, b->memory, b->bytes);
    rig_free(r, b->memory);
    return v;
}

static void each_alone(const struct rig *r, enum op op, const struct bank *b)
{
    struct err e = {0};
    for (int k = 0; k < UPDATES; k++)
        if (r->backend->op.run[op](r->q, &b->call[k], &e))
            fail_msg("%s", e.text);
}

static void together_as_alone(const struct rig *r, enum op op, bool skip)
{
    static struct bank alone, together;
    struct err e = {0};
    size_t bytes;
    float *before = numbers(op_outputs(op) + 1, skip, &bytes);
    bank_open(r, op, before, bytes, &alone);
    bank_open(r, op, before, bytes, &together);
    copies_open(r, &alone);
    copies_open(r, &together);
    each_alone(r, op, &alone);
    if (r->backend->op.run_many[op](r->q, together.call, UPDATES, &e))
        fail_msg("%s", e.text);
    float *x = bank_close(r, &alone), *y = bank_close(r, &together);
    if (memcmp(x, y, bytes) != 0)
        fail_msg("%s on %s: together they differ from alone", op_name(op), r->info.isa);
    uint16_t *p = copies_close(r, &alone), *q = copies_close(r, &together);
    if (memcmp(p, q, alone.half_bytes) != 0)
        fail_msg("%s on %s: together the copies differ from alone", op_name(op), r->info.isa);
    free(p);
    free(q);
    if ((memcmp(before, y, bytes) == 0) != skip)
        fail_msg("%s on %s: %s", op_name(op), r->info.isa, skip ? "not skipped" : "skipped");
    free(before);
    free(x);
    free(y);
}

static void many_updates_at_once_have_the_bits_of_each_alone(void **state)
{
    static const enum op ops[] = {OP_SGD, OP_MOMENTUM, OP_ADAM};
    (void)state;
    for (int r = 0; r < nrigs; r++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (int skip = 0; skip < 2; skip++)
                together_as_alone(&rigs[r], ops[o], skip);
}

// Ties to either side, what overflows, denormals and what is no number, for parameters that a
// skipped update leaves alone.
static void odd_numbers(const struct rig *r, enum op op, float *before, size_t bytes)
{
    static const float odd[] = {0x1.01p0f,        0x1.03p0f, NAN,         INFINITY, -0.0f,
                                -0x1.fffffep127f, 0x1p-134f, 0x1.8p-134f, -3,       0x1.00ffp0f};
    static struct bank b;
    bank_open(r, op, before, bytes, &b);
    for (int k = 0; k < UPDATES; k++) {
        float *p = before + ((char *)b.call[k].in[0].data - b.memory) / (ptrdiff_t)sizeof *before;
        for (int64_t i = 0; i < length_of(k); i++)
            p[i] = odd[(size_t)(i + k) % (sizeof odd / sizeof *odd)];
    }
    free(bank_close(r, &b));
}

// The updates' own results are what they are without copies; each copy is the cast of its p.
static void copies_as_cast(const struct rig *r, enum op op, bool skip)
{
    static struct bank plain, with;
    const struct op_attr attr = {.scale = 1, .labels = 1};
    struct err e = {0};
    size_t bytes;
    float *before = numbers(op_outputs(op) + 1, skip, &bytes);
    if (skip)
        odd_numbers(r, op, before, bytes);
    bank_open(r, op, before, bytes, &plain);
    bank_open(r, op, before, bytes, &with);
    copies_open(r, &with);
    each_alone(r, op, &plain);
    each_alone(r, op, &with);
    char *cast = rig_memory(r, NULL, with.half_bytes), *at = cast;
    for (int k = 0; k < UPDATES; k++) {
        struct op_call c = {.op = OP_CAST, .attr = &attr, .nin = 1, .nout = 1};
        if (!copied(k))
            continue;
        c.in[0] = plain.call[k].out[0];
        c.out[0] = (struct tensor){at, DT_BF16, {1, {length_of(k)}}};
        at += sizeof(uint16_t) * (size_t)length_of(k);
        if (r->backend->op.run[OP_CAST](r->q, &c, &e))
            fail_msg("%s", e.text);
    }
    uint16_t *want = malloc(with.half_bytes), *got = copies_close(r, &with);
    assert_non_null(want);
    rig_read(r, want, cast, with.half_bytes);
    for (size_t i = 0; i < with.half_bytes / sizeof *got; i++)
        if (got[i] != want[i])
            fail_msg("%s on %s%s: copy %zu is %04x, the cast %04x", op_name(op), r->info.isa,
                     skip ? ", skipped" : "", i, got[i], want[i]);
    float *x = bank_close(r, &plain), *y = bank_close(r, &with);
    if (memcmp(x, y, bytes) != 0)
        fail_msg("%s on %s: its copy changes it", op_name(op), r->info.isa);
    rig_free(r, cast);
    free(before);
    free(want);
    free(got);
    free(x);
    free(y);
}

static void a_copy_has_the_bits_of_a_cast_of_the_new_parameter(void **state)
{
    static const enum op ops[] = {OP_SGD, OP_MOMENTUM, OP_ADAM};
    (void)state;
    for (int r = 0; r < nrigs; r++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (int skip = 0; skip < 2; skip++)
                copies_as_cast(&rigs[r], ops[o], skip);
}

// Against double precision, in place and beside; no kernel reads what the copy held before.
static void a_copy_is_near_the_references(void **state)
{
    static const struct {
        enum op op;
        const char *einsum;
    } cases[] = {{OP_SGD, "ij,ij,a,b->ij"},
                 {OP_MOMENTUM, "ij,ij,ij,a,b->ij"},
                 {OP_ADAM, "ij,ij,ij,ij,a,b->ij"}};
    static const struct extents sizes[] = {{1, 1, 1, 1}, {3, 7, 1, 1}, {129, 257, 1, 1}};
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++)
        for (size_t s = 0; s < 2 * sizeof sizes / sizeof *sizes; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, sizes[s / 2]);
            rig_case(&c, &a, cases[t].op, cases[t].einsum, ext);
            c.attr.beta1 = 0.9, c.attr.beta2 = 0.99, c.attr.eps = 1e-8f, c.attr.decay = 0.01f;
            for (int k = 0; k < c.nin; k++)
                rig_fill(&c.in[k], (uint64_t)k + 1, 0.1, 1);
            c.in[c.nin - 2].v[CLIP_SKIP] = 0;
            c.in_place = s % 2;
            c.start[c.nout] = c.start[0];
            c.start[c.nout].dtype = DT_BF16;
            c.start[c.nout].v = arena_array(&a, double, shape_count(&c.start[0].shape));
            memcpy(c.attr.label[c.nin + c.nout], c.attr.label[c.nin], sizeof c.attr.label[0]);
            c.nout++;
            run_everywhere(&c, "a copy", 0x1p-7, 1e-5); // a unit of bf16: a tie may turn
            arena_clear(&a);
        }
}

// ---- moments whose decay is near 1 --------------------------------------------------------------

enum { STEPS = 40 };

static void set_step(struct rig_case *c, int step)
{
    double *clip = c->in[c->nin - 2].v, *hyper = c->in[c->nin - 1].v;
    clip[CLIP_SCALE] = 1, clip[CLIP_SKIP] = 0;
    hyper[HYPER_LR] = (double)0.01f;
    hyper[HYPER_BIAS1] = (double)(float)(1 / (1 - pow(c->attr.beta1, step)));
    hyper[HYPER_BIAS2] = (double)(float)(1 / (1 - pow(c->attr.beta2, step)));
    rig_fill(&c->in[1], (uint64_t)step, 0.1, 1);
}

// What came out is what the next step begins with: parameters and states, the gradient is between.
static void take_results(struct rig_case *c, double *const *out, int64_t n)
{
    for (int k = 0; k < c->nout; k++)
        memcpy(c->in[k ? k + 1 : 0].v, out[k], (size_t)n * sizeof(double));
}

// ---- the squares of many gradients -------------------------------------------------------------

// More than one launch takes; lengths around a chunk's, one that has several, and places that no
// 16 bytes begin at.
enum { SQUARES = 170, ROOM = OP_CHUNKS * sizeof(double) };
static const int64_t square_lengths[] = {1, 8192, 3, 8193, 770, 40001, 12, 2048};

static int64_t square_length(int k)
{
    return square_lengths[(size_t)k % (sizeof square_lengths / sizeof *square_lengths)];
}

// Every fifth counts elsewhere; what lies there is no number.
static float square_scale(int k)
{
    return k % 5 ? 1 : 0;
}

static double fill_squares(float *v)
{
    double want = 0;
    for (int k = 0; k < SQUARES; v += square_length(k++))
        for (int64_t i = 0; i < square_length(k); i++) {
            v[i] = square_scale(k) == 0 ? NAN : (float)((i * 37 + k) % 101 - 50) * 0x1p-70f;
            want += square_scale(k) == 0 ? 0 : (double)v[i] * (double)v[i];
        }
    return want;
}

// The scalar that all calls add to, by calls one by one or in a row, with so much scratch.
static float add_squares(const struct rig *r, char *memory, bool row, size_t room)
{
    static struct op_call call[SQUARES];
    static struct op_attr attr[SQUARES];
    struct err e = {0};
    char *scratch = rig_memory(r, NULL, room), *at = memory;
    struct tensor to = vector(&at, 1);
    float sum = -1;
    int rc = 0;
    to.shape.n = 0;
    for (int k = 0; k < SQUARES; k++) {
        attr[k] = (struct op_attr){.scale = square_scale(k)};
        call[k] = (struct op_call){.op = OP_SQNORM, .attr = &attr[k], .nin = 1, .nout = 1};
        call[k].in[0] = vector(&at, square_length(k));
        call[k].out[0] = to;
        call[k].accumulate = k > 0;
        call[k].workspace = scratch;
        call[k].workspace_bytes = room;
    }
    if (row)
        rc = r->backend->op.run_many[OP_SQNORM](r->q, call, SQUARES, &e);
    for (int k = 0; k < SQUARES && !row && !rc; k++)
        rc = r->backend->op.run[OP_SQNORM](r->q, &call[k], &e);
    if (rc)
        fail_msg("%s", e.text);
    rig_read(r, &sum, to.data, sizeof sum);
    rig_free(r, scratch);
    return sum;
}

static void the_squares_of_many_gradients_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    size_t n = 1;
    for (int k = 0; k < SQUARES; k++)
        n += (size_t)square_length(k);
    float *v = calloc(n, sizeof *v);
    assert_non_null(v);
    double want = fill_squares(v + 1);
    for (int r = 0; r < nrigs; r++) {
        char *memory = rig_memory(&rigs[r], v, n * sizeof *v);
        float alone = add_squares(&rigs[r], memory, false, ROOM);
        if (!(fabs((double)alone - want) < 1e-5 * want))
            fail_msg("%s: %g, not %g", rigs[r].info.isa, (double)alone, want);
        for (size_t room = ROOM; room <= 16 * ROOM && rigs[r].backend->op.run_many[OP_SQNORM];
             room *= 4)
            if (add_squares(&rigs[r], memory, true, room) != alone)
                fail_msg("%s: in a row they differ from alone", rigs[r].info.isa);
        rig_free(&rigs[r], memory);
    }
    free(v);
}

// Gradients have one sign, so that errors of the updates add up and those of rounding do not.
static void train_beside_doubles(const struct rig *r, enum op op, double beta1, double beta2)
{
    struct arena a = {0};
    struct rig_case here, exact;
    int64_t ext[26], n = 33;
    double *out[OP_MAX_OUT];
    const char *einsum = op == OP_ADAM ? "i,i,i,i,a,b->i" : "i,i,i,a,b->i";
    letters(ext, (struct extents){n, 1, 1, 1});
    rig_case(&here, &a, op, einsum, ext);
    rig_case(&exact, &a, op, einsum, ext);
    here.attr.beta1 = beta1, here.attr.beta2 = beta2, here.attr.eps = 1e-8f, here.attr.lr_scale = 1;
    exact.attr = here.attr;
    for (int step = 1; step <= STEPS; step++) {
        set_step(&here, step);
        set_step(&exact, step);
        rig_run(r, &here, &a, out);
        take_results(&here, out, n);
        rig_reference(&exact, &a, out);
        take_results(&exact, out, n);
    }
    char what[100];
    snprintf(what, sizeof what, "%s with decays %.9g and %.9g", op_name(op), beta1, beta2);
    rig_compare(what, here.in[0].v, exact.in[0].v, n, 1.5e-6, 0);
    arena_clear(&a);
}

static void a_decay_near_one_is_kept(void **state)
{
    static const double near[] = {0.999, 0.99999, 0.9999999, 0.99999999};
    (void)state;
    for (int r = 0; r < nrigs; r++)
        for (size_t k = 0; k < sizeof near / sizeof *near; k++) {
            train_beside_doubles(&rigs[r], OP_ADAM, 0.9, near[k]);
            train_beside_doubles(&rigs[r], OP_ADAM, near[k], 0.999);
            train_beside_doubles(&rigs[r], OP_MOMENTUM, near[k], 0);
        }
}

// An update of other lengths among them is refused by name, as it is alone.
static void one_that_is_wrong_is_refused(void **state)
{
    (void)state;
    for (int r = 0; r < nrigs; r++) {
        static struct bank b;
        struct err e = {0};
        size_t bytes;
        float *before = numbers(4, false, &bytes);
        bank_open(&rigs[r], OP_ADAM, before, bytes, &b);
        b.call[40].in[1].shape.dim[0]++;
        assert_int_equal(rigs[r].backend->op.run_many[OP_ADAM](rigs[r].q, b.call, UPDATES, &e),
                         ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "adam: operands differ in size"));
        free(bank_close(&rigs[r], &b));
        bank_open(&rigs[r], OP_ADAM, before, bytes, &b);
        copies_open(&rigs[r], &b);
        b.call[3].out[3].dtype = DT_F32;
        assert_int_equal(rigs[r].backend->op.run_many[OP_ADAM](rigs[r].q, b.call, UPDATES, &e),
                         ERR_UNSUPPORTED);
        free(copies_close(&rigs[r], &b));
        free(bank_close(&rigs[r], &b));
        free(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_updates_at_once_have_the_bits_of_each_alone),
        cmocka_unit_test(the_squares_of_many_gradients_have_the_bits_of_each_alone),
        cmocka_unit_test(a_copy_has_the_bits_of_a_cast_of_the_new_parameter),
        cmocka_unit_test(a_copy_is_near_the_references),
        cmocka_unit_test(a_decay_near_one_is_kept),
        cmocka_unit_test(one_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
