// SPDX-License-Identifier: Apache-2.0
// Products on the emulated CUDA device, over a cuBLASLt of our own (fake_cublaslt.c): whose numbers
// they are, wherever operands lie, captured too, and which chains are made in the product's kernel.
// Which algorithm is chosen is test_choices.c's.
#include "tests/cuda/products.h"

#include "common/op/chain.h"

// ---- numbers -----------------------------------------------------------------------------------

static void held_against_reference(const struct rig *r, const struct rig_case *c, const int *offset,
                                   double rtol, const char *what)
{
    struct arena a = {0};
    struct placed p;
    double *want[OP_MAX_OUT];
    rig_reference(c, &a, want);
    place_case(r, &p, c, offset, SCRATCH);
    run(r, &p);
    for (int k = 0; k < c->nout; k++)
        rig_compare(what, result(r, &p.call.out[k], &a), want[k], shape_count(&c->start[k].shape),
                    rtol, 1e-5);
    release(r, &p);
    arena_clear(&a);
}

static void operands_may_begin_at_any_element(void **state)
{
    static const char *const layouts[] = {"ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "lik,lkj->lij"};
    static const enum dtype dtypes[][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}};
    struct rig r;
    (void)state;
    device_open(&r, NULL, true);
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
            for (int at = 0; at < 8; at++) {
                const int offset[3] = {at & 1, at & 2, at >> 2 ? 3 : 0};
                struct arena a = {0};
                struct rig_case c;
                char what[80];
                product_case(&c, &a, layouts[l], even, dtypes[t][0], dtypes[t][1]);
                snprintf(what, sizeof what, "%s %s to %s at %d,%d,%d", layouts[l],
                         dtype_name(dtypes[t][0]), dtype_name(dtypes[t][1]), offset[0], offset[1],
                         offset[2]);
                held_against_reference(&r, &c, offset, dtypes[t][1] == DT_BF16 ? 0x1p-8 : 1e-6,
                                       what);
                c.accumulate = dtypes[t][1] == DT_F32;
                held_against_reference(&r, &c, offset, dtypes[t][1] == DT_BF16 ? 0x1p-8 : 1e-6,
                                       what);
                arena_clear(&a);
            }
    r.backend->device.close(r.device);
}

// Whole numbers up to 64: every product and sum is exact in f32 and none of the sums between is in
// bf16, so one rounding gives the reference's bits and two do not. 40,000 columns of f32 fill half
// the scratch with 64 rows: 130 rows take three turns.
static void sums_of_batches_in_bf16_are_rounded_once(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    double *want[OP_MAX_OUT];
    struct placed p;
    (void)state;
    device_open(&r, NULL, true);
    product_case(&c, &a, "lik,lkj->ij", (struct extents){130, 40000, 2, 3}, DT_BF16, DT_BF16);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < shape_count(&c.in[k].shape); i++)
            c.in[k].v[i] = rint(64 * c.in[k].v[i]);
    rig_reference(&c, &a, want);
    place_case(&r, &p, &c, NULL, PLANNED);
    run(&r, &p);
    rig_compare("sum", result(&r, &p.call.out[0], &a), want[0], 130 * 40000, 0, 0);
    release(&r, &p);
    arena_clear(&a);
    r.backend->device.close(r.device);
}

// To the nearest with 10 bits behind the point, ties to even.
static double tf32_of(double x)
{
    int e;
    double m = frexp(x, &e); // in [0.5, 1): 11 bits are 10 behind the leading one
    return ldexp(rint(ldexp(m, 11)), e - 11);
}

static void f32_is_read_whole_unless_the_job_says_tf32(void **state)
{
    struct arena a = {0};
    struct rig_case c, narrow;
    struct rig r;
    (void)state;
    device_open(&r, NULL, true);
    product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
    held_against_reference(&r, &c, NULL, 1e-6, "f32");
    narrow = c;
    c.attr.tf32 = true;
    double *want[OP_MAX_OUT], *whole[OP_MAX_OUT], off = 0;
    rig_reference(&c, &a, whole);
    for (int k = 0; k < 2; k++) {
        narrow.in[k].v = arena_array(&a, double, (size_t)shape_count(&c.in[k].shape));
        for (int64_t i = 0; i < shape_count(&c.in[k].shape); i++)
            narrow.in[k].v[i] = tf32_of(c.in[k].v[i]);
    }
    rig_reference(&narrow, &a, want);
    struct placed p;
    place_case(&r, &p, &c, NULL, SCRATCH);
    run(&r, &p);
    rig_compare("tf32", result(&r, &p.call.out[0], &a), want[0], 16 * 24, 1e-6, 1e-6);
    for (int i = 0; i < 16 * 24; i++)
        off = fmax(off, fabs(want[0][i] - whole[0][i]));
    assert_true(off > 1e-4); // the two differ
    release(&r, &p);
    arena_clear(&a);
    r.backend->device.close(r.device);
}

static void what_a_product_cannot_be_is_refused_by_name(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    (void)state;
    device_open(&r, NULL, true);
    product_case(&c, &a, "ik,kj->ij", even, DT_BF16, DT_BF16);
    c.accumulate = true;
    place_case(&r, &p, &c, NULL, 0);
    assert_int_equal(r.backend->op.run[OP_MATMUL](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "cuda: matmul: adds to f32 alone");
    p.call.accumulate = false;
    p.call.in[1].dtype = DT_F32;
    assert_int_equal(r.backend->op.run[OP_MATMUL](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "cuda: matmul: input 2 is f32, which the op does not take there");
    release(&r, &p);
    product_case(&c, &a, "lik,lkj->ij", even, DT_BF16, DT_BF16);
    place_case(&r, &p, &c, NULL, 0);
    assert_int_equal(r.backend->op.run[OP_MATMUL](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "cuda: matmul: a sum of batches in bf16 has too little scratch");
    release(&r, &p);
    scene("lt_none");
    product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
    place_case(&r, &p, &c, NULL, SCRATCH);
    assert_int_equal(r.backend->op.run[OP_MATMUL](r.q, &p.call, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "cublaslt 13.1.0 has no algorithm for the product 16x24x32"));
    release(&r, &p);
    arena_clear(&a);
    r.backend->device.close(r.device);
}

// ---- on the device -----------------------------------------------------------------------------

// A captured product is queued by the graph alone, and again at each launch. One that was neither
// tuned nor run before is refused, and the capture goes on: the library names no algorithms there.
static void a_product_can_be_captured(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    void *graph = NULL, *empty = NULL;
    double *want[OP_MAX_OUT];
    (void)state;
    device_open(&r, NULL, true);
    product_case(&c, &a, "ik,kj->ij", even, DT_F32, DT_F32);
    c.accumulate = true;
    place_case(&r, &p, &c, NULL, SCRATCH);
    if (r.backend->stream.sync(r.q, &e) || r.backend->graph->begin(r.q, &e))
        fail_msg("%s", e.text);
    assert_int_equal(r.backend->op.run[OP_MATMUL](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "before this capture: tune it first"));
    if (r.backend->graph->end(r.q, &empty, &e))
        fail_msg("%s", e.text);
    r.backend->graph->destroy(empty);
    tune(&r, &p, false);
    release(&r, &p);
    place_case(&r, &p, &c, NULL, SCRATCH);
    if (r.backend->stream.sync(r.q, &e) || r.backend->graph->begin(r.q, &e) ||
        r.backend->op.run[OP_MATMUL](r.q, &p.call, &e) || r.backend->graph->end(r.q, &graph, &e))
        fail_msg("%s", e.text);
    rig_compare("captured", result(&r, &p.call.out[0], &a), c.start[0].v, 16 * 24, 0, 0);
    for (int turn = 0; turn < 2; turn++) {
        if (r.backend->graph->launch(r.q, graph, &e))
            fail_msg("%s", e.text);
        rig_reference(&c, &a, want);
        rig_compare("launched", result(&r, &p.call.out[0], &a), want[0], 16 * 24, 1e-6, 1e-6);
        c.start[0].v = want[0];
    }
    r.backend->graph->destroy(graph);
    release(&r, &p);
    arena_clear(&a);
    r.backend->device.close(r.device);
}

// The last test: the process's device 0 is lost for good. The kernel in front runs at some time
// while the parts of a sum are queued, so cuBLASLt is the first that cannot start anything; what it
// says of that names neither the kernel's error nor a device.
static void a_device_that_fails_behind_a_product_says_what_happened(void **state)
{
    static const struct op_attr twice = {.label = {{0}, {0}}, .labels = 1, .scale = 2};
    struct op_call scale = {.op = OP_SCALE, .attr = &twice, .nin = 1, .nout = 1};
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct err e = {0};
    int rc;
    (void)state;
    device_open(&r, NULL, true);
    product_case(&c, &a, "lik,lkj->ij", (struct extents){16, 24, 32, 1000}, DT_F32, DT_F32);
    place_case(&r, &p, &c, NULL, SCRATCH);
    run(&r, &p);
    scale.in[0] = scale.out[0] = (struct tensor){p.call.out[0].data, DT_F32, {1, {16 * 24}}};
    scene("sticky:1");
    rc = r.backend->op.run[OP_SCALE](r.q, &scale, &e);
    scene("sticky:1,seed:1");
    rc = rc ? rc : r.backend->op.run[OP_MATMUL](r.q, &p.call, &e);
    assert_int_equal(rc, ERR_DEVICE);
    assert_string_equal(e.text,
                        "cuda device 0: cudaStreamSynchronize behind op 'matmul': an illegal "
                        "memory access was encountered (cudaErrorIllegalAddress): run with "
                        "CUDA_LAUNCH_BLOCKING=1 to learn which op it is");
    r.backend->device.close(r.device); // as far as it goes
    arena_clear(&a);
}

// ---- chains behind a product -------------------------------------------------------------------

// Operands behind a and b are r1, r2; r0 is the product, steps are from r(inputs) on. `end`: the
// epilogue; null: there is none, whatever the library has.
struct chained {
    const char *einsum, *end;
    struct op_chain chain;
};
#define ADD_(x, y)        \
    {                     \
        OP_ADD, {x, y}, 0 \
    }
#define ONE_(op, x)    \
    {                  \
        op, {x, -1}, 0 \
    }
#define GRAD_(op, x, dy) \
    {                    \
        op, {x, dy}, 0   \
    }

static const struct chained chains[] = {
    {"ik,kj,j->ij", "bias", {2, 1, {ADD_(0, 1)}, {2}}},
    {"ik,kj,j->ij", "bias", {2, 1, {ADD_(1, 0)}, {2}}},
    {"lik,lkj,j->lij", "bias,0", {2, 1, {ADD_(0, 1)}, {2}}},
    {"ik,lkj,lj->lij", "bias,24", {2, 1, {ADD_(0, 1)}, {2}}}, // q, k and v: each has its own
    {"ik,klj,lj->ilj", "bias", {2, 1, {ADD_(0, 1)}, {2}}},    // heads
    {"ik,kj,j,ij->ij", "plus bias", {3, 2, {ADD_(0, 1), ADD_(3, 2)}, {4}}},
    {"ik,kj,ij,j->ij", "plus bias", {3, 2, {ADD_(0, 1), ADD_(3, 2)}, {4}}},
    {"ik,kj,ij->ij", "plus none", {2, 1, {ADD_(0, 1)}, {2}}},
    {"ik,kj,j->ij", "gelu_bias", {2, 2, {ADD_(0, 1), ONE_(OP_GELU, 2)}, {3}}},
    {"ik,kj,j->ij,ij", "gelu_aux_bias", {2, 2, {ADD_(0, 1), ONE_(OP_GELU, 2)}, {2, 3}}},
    {"ik,kj,j->ij,ij", "gelu_aux_bias", {2, 2, {ADD_(0, 1), ONE_(OP_GELU, 2)}, {3, 2}}},
    {"ik,kj->ij", "gelu", {1, 1, {ONE_(OP_GELU, 0)}, {1}}},
    {"ik,kj->ij,ij", "gelu_aux", {1, 1, {ONE_(OP_GELU, 0)}, {0, 1}}},
    {"ik,jk,ij->ij", "dgelu", {2, 1, {GRAD_(OP_GELU_GRAD, 1, 0)}, {2}}},
    // What the library has makes zeros of NaN.
    {"ik,kj,j->ij", NULL, {2, 2, {ADD_(0, 1), ONE_(OP_RELU, 2)}, {3}}},
    {"ik,kj->ij", NULL, {1, 1, {ONE_(OP_RELU, 0)}, {1}}},
    // Not what the library has.
    {"ik,kj,i->ij", NULL, {2, 1, {ADD_(0, 1)}, {2}}},                         // one a row
    {"ik,kj,ji->ij", NULL, {2, 1, {ADD_(0, 1)}, {2}}},                        // lies the other way
    {"ik,kj,->ij", NULL, {2, 1, {ADD_(0, 1)}, {2}}},                          // one number
    {"ik,kj,j,j->ij", NULL, {3, 2, {ADD_(0, 1), ADD_(3, 2)}, {4}}},           // two biases
    {"ik,kj,j->ij,ij", NULL, {2, 2, {ADD_(0, 1), ONE_(OP_RELU, 2)}, {2, 3}}}, // relu's input kept
    {"ik,kj,j->ij", NULL, {2, 2, {ONE_(OP_GELU, 0), ADD_(2, 1)}, {3}}},       // bias behind it
    {"ik,kj,j->ij", NULL, {2, 2, {ADD_(0, 1), ONE_(OP_TANH, 2)}, {3}}},       //
    {"ik,kj,j->ij,ij", NULL, {2, 2, {ADD_(0, 1), ONE_(OP_GELU, 2)}, {0, 3}}}, // the bare product
    {"ik,kj,ij->ij", NULL, {2, 1, {GRAD_(OP_GELU_GRAD, 0, 1)}, {2}}},         // the other's slope
    {"ik,kj,ij->ij", NULL, {2, 1, {GRAD_(OP_RELU_GRAD, 1, 0)}, {2}}},         //
    {"ik,kj->ij", NULL, {1, 1, {ADD_(0, 0)}, {1}}},                           // twice itself
    {"ik,kj,ij->ij", NULL, {2, 2, {ONE_(OP_GELU, 0), {OP_MUL, {2, 1}, 0}}, {3}}},
    {"lik,lkj,j->ij",
     NULL,
     {2, 1, {ADD_(0, 1)}, {2}}}, // a sum of batches has more than one product
};

static void chained_case(struct rig_case *c, struct arena *a, const struct chained *h, enum dtype t,
                         struct extents ext)
{
    int64_t extent[26];
    letters(extent, ext);
    rig_case(c, a, OP_LINEAR, h->einsum, extent);
    c->attr.chain = &h->chain;
    c->nout = strchr(strchr(h->einsum, '>'), ',') ? 2 : 1;
    for (int k = 0; k < c->nin; k++) {
        c->in[k].dtype = t;
        rig_fill(&c->in[k], (uint64_t)k + 1, -1, 1);
    }
    for (int k = 0; k < c->nout; k++) {
        c->start[k].dtype = t;
        rig_fill(&c->start[k], 9, -1, 1);
    }
}

static bool is_mentioned(const char *text, const char *end)
{
    char word[40];
    snprintf(word, sizeof word, " %s%s", end, strchr(end, ',') ? " " : "");
    for (const char *at = text; (at = strstr(at, word)); at++)
        if (strchr(", ", at[strlen(word)]) || strchr(word, ','))
            return true;
    return false;
}

// The product is rounded to bf16 once more where the chain has a kernel of its own.
static double slack(enum dtype t)
{
    return t == DT_F32 ? 2e-6 : 0x1p-6;
}

static void expect_chained(const struct chained *h, enum dtype t, struct extents ext,
                           const char *set, bool fused)
{
    struct arena a = {0};
    struct rig_case c;
    struct rig r;
    struct placed p;
    struct buf text = {0};
    double *want[OP_MAX_OUT];
    char what[120];
    scene(set);
    device_open(&r, NULL, true);
    chained_case(&c, &a, h, t, ext);
    snprintf(what, sizeof what, "%s %s %s, scene '%s'", h->einsum, h->end ? h->end : "alone",
             dtype_name(t), set);
    rig_reference(&c, &a, want);
    place_case(&r, &p, &c, NULL, SCRATCH);
    for (int turn = 0; turn < 2; turn++) {
        run(&r, &p);
        for (int k = 0; k < c.nout; k++)
            rig_compare(what, result(&r, &p.call.out[k], &a), want[k],
                        shape_count(&c.start[k].shape), slack(t), slack(t) * 4);
        if (!turn)
            tune(&r, &p, true);
    }
    exported(&r, &text);
    if (h->end && (fused != is_mentioned(buf_str(&text), h->end)))
        fail_msg("%s: %s in\n%s", what, fused ? "not" : "still", buf_str(&text));
    release(&r, &p);
    r.backend->device.close(r.device);
    buf_clear(&text);
    arena_clear(&a);
    scene("");
}

static void chains_are_made_where_the_sums_are_if_the_library_can(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            expect_chained(&chains[i], t, even, "", true);
            // Its choice is that there is none, so it is mentioned all the same.
            expect_chained(&chains[i], t, even, "lt_bare", true);
            expect_chained(&chains[i], t, even, "lt_refuses_ends", true);
        }
}

// What the gelu read must have rows of a multiple of eight; a bias must be aligned, each batch's.
static void chains_whose_rows_are_odd_have_a_kernel_of_their_own(void **state)
{
    const struct extents odd = {16, 21, 32, 2};
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            struct chained h = chains[i];
            bool wants_rows = h.end && (strstr(h.end, "aux") || strstr(h.end, "dgelu"));
            if (h.end && strcmp(h.end, "bias,24") == 0)
                h.end = NULL;
            expect_chained(&h, t, odd, "", !wants_rows);
        }
}

static void an_epilogue_that_is_slower_than_two_kernels_is_dropped(void **state)
{
    const struct chained *h = &chains[0];
    struct arena a = {0};
    struct rig_case c;
    struct buf text = {0};
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        struct rig r;
        struct placed p;
        double *want[OP_MAX_OUT];
        scene(slow ? "lt_slow_ends" : "");
        device_open(&r, NULL, true);
        chained_case(&c, &a, h, DT_F32, even);
        rig_reference(&c, &a, want);
        place_case(&r, &p, &c, NULL, SCRATCH);
        tune(&r, &p, true);
        exported(&r, &text);
        assert_int_equal(chosen(buf_str(&text), "16x24x32*1 nn 32,24,24 512,768,384 f32>f32 bias"),
                         slow ? 0 : ALIGNED);
        run(&r, &p);
        rig_compare("dropped", result(&r, &p.call.out[0], &a), want[0], 16 * 24, 1e-6, 1e-5);
        release(&r, &p);
        r.backend->device.close(r.device);
    }
    buf_clear(&text);
    arena_clear(&a);
}

// ---- a sum beside a product ---------------------------------------------------------------------

struct summed {
    const char *einsum, *end; // null: no epilogue serves it
    struct extents ext;
    bool accumulate;
    int offset; // of the sums, in elements
};

// By the library's names A is our second operand.
static const struct summed sums[] = {
    {"ki,kj->ij,j", "bgrada", {16, 24, 32, 2}, false, 0},
    {"ki,kj->ij,i", "bgradb", {16, 24, 32, 2}, false, 0},
    {"ik,kj->ij,j", "bgrada", {17, 21, 33, 2}, false, 0},
    {"ki,jk->ij,i", "bgradb", {17, 21, 33, 2}, false, 0},
    {"lki,lkj->ij,j", "bgrada", {16, 24, 32, 3}, false, 4},
    {"ki,lkj->lij,lj", "bgrada", {16, 24, 32, 3}, false, 0}, // q, k and v: each has its own
    {"lki,kj->lij,li", "bgradb", {16, 24, 32, 3}, false, 0},
    // The library adds to no sums, and wants their 16 bytes, in each batch; what all batches read
    // would be summed for each.
    {"ki,lkj->lij,lj", NULL, {16, 21, 32, 3}, false, 0},
    {"ki,lkj->lij,i", NULL, {16, 24, 32, 3}, false, 0},
    {"ki,kj->ij,j", NULL, {16, 24, 32, 2}, true, 0},
    {"lik,lkj->ij,j", NULL, {16, 24, 32, 3}, false, 0},
    {"ki,kj->ij,j", NULL, {16, 24, 32, 2}, false, 1},
};

static void summed_case(struct rig_case *c, struct arena *a, const struct summed *s, enum dtype t)
{
    int64_t extent[26];
    letters(extent, s->ext);
    rig_case(c, a, OP_MATMUL_SUM, s->einsum, extent);
    c->accumulate = s->accumulate;
    for (int k = 0; k < 2; k++) {
        c->in[k].dtype = t;
        rig_fill(&c->in[k], (uint64_t)k + 1, -1, 1);
        rig_fill(&c->start[k], 9, -1, 1);
    }
}

static void expect_choice(const struct rig *r, const struct summed *s, const char *what,
                          bool chooses)
{
    struct buf text = {0};
    exported(r, &text);
    const char *said = buf_str(&text);
    bool named = is_mentioned(said, "bgrada") || is_mentioned(said, "bgradb");
    char end[20];
    snprintf(end, sizeof end, " %s @", s->end ? s->end : "");
    if (named != (s->end != NULL) || (s->end && (chosen(said, end) != 0) != chooses))
        fail_msg("%s: %s chosen in\n%s", what, chooses ? "not" : "still", said);
    buf_clear(&text);
}

// By what the library names first, and by what tuning finds, which writes over the results.
static void expect_summed(const struct summed *s, enum dtype t, const char *set, bool chooses)
{
    const int offset[OP_MAX_IN + OP_MAX_OUT] = {[3] = s->offset};
    struct arena a = {0};
    struct rig_case c;
    double *want[OP_MAX_OUT];
    char what[120];
    scene(set);
    summed_case(&c, &a, s, t);
    rig_reference(&c, &a, want);
    snprintf(what, sizeof what, "%s %s at %d, scene '%s'", s->einsum, dtype_name(t), s->offset,
             set);
    for (int tuned = 0; tuned < 2; tuned++) {
        struct rig r;
        struct placed p;
        device_open(&r, NULL, true);
        place_case(&r, &p, &c, offset, PLANNED);
        if (tuned) {
            tune(&r, &p, true);
            release(&r, &p);
            place_case(&r, &p, &c, offset, PLANNED);
        }
        run(&r, &p);
        for (int k = 0; k < 2; k++)
            rig_compare(what, result(&r, &p.call.out[k], &a), want[k],
                        shape_count(&c.start[k].shape), 2e-6, 1e-5);
        if (tuned)
            expect_choice(&r, s, what, chooses);
        release(&r, &p);
        r.backend->device.close(r.device);
    }
    arena_clear(&a);
    scene("");
}

static void an_operand_is_summed_where_it_is_multiplied_if_the_library_can(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        for (enum dtype t = DT_F32; t <= DT_BF16; t++) {
            expect_summed(&sums[i], t, "", true);
            expect_summed(&sums[i], t, "lt_bare", false);
            expect_summed(&sums[i], t, "lt_refuses_ends", false);
            expect_summed(&sums[i], t, "lt_slow_ends", false);
        }
}

static int calm(void **state)
{
    (void)state;
    scene("");
    return 0;
}

int main(void)
{
    if (!find_twin())
        return 1;
#define CASE(f) cmocka_unit_test_setup_teardown(f, calm, calm)
    const struct CMUnitTest tests[] = {
        CASE(operands_may_begin_at_any_element),
        CASE(sums_of_batches_in_bf16_are_rounded_once),
        CASE(f32_is_read_whole_unless_the_job_says_tf32),
        CASE(what_a_product_cannot_be_is_refused_by_name),
        CASE(a_product_can_be_captured),
        CASE(chains_are_made_where_the_sums_are_if_the_library_can),
        CASE(chains_whose_rows_are_odd_have_a_kernel_of_their_own),
        CASE(an_epilogue_that_is_slower_than_two_kernels_is_dropped),
        CASE(an_operand_is_summed_where_it_is_multiplied_if_the_library_can),
        CASE(a_device_that_fails_behind_a_product_says_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
