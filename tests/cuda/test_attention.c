// SPDX-License-Identifier: Apache-2.0
// Attention on the emulated CUDA device, over a cuDNN of our own (fake_cudnn.c): who serves a call,
// that the same call gives the same bits, what little scratch suffices, and a captured call.
//
// The fake's engines: the first gives other bits each time and says so, the second wants more
// scratch than anybody has, the third does it.
#include "tests/ops/everywhere.h"

#include "common/op/attention.h"

static void device_open(struct rig *r, bool deterministic)
{
    const struct device_options o = {.deterministic = deterministic};
    struct err e = {0};
    setenv("WEFT_RIG", "cuda", 1);
    rig_find_backend();
    *r = (struct rig){0};
    if (backend_load("cuda", &r->backend, &e) || r->backend->device.open(&o, &r->device, &e) ||
        r->backend->stream.create(r->device, STREAM_USUAL, &r->q, &e))
        fail_msg("%s", e.text);
    r->backend->device.info(r->device, &r->info);
}

// Elements of a head's queries and keys, of its values, of the second pair; r 0: there is none.
struct widths {
    int64_t d, e, r;
};

// bf16, in order; two query heads share a key head, and all of them a second key.
static void make_pairs_of(struct rig_case *c, struct arena *a, bool grad, int64_t batch,
                          int64_t seq, int64_t heads, struct widths w)
{
    static const char *const einsum[2][2] = {
        {"bshd,bsgd,bsge,bs,bs->bshe,bhs", "bshd,bsgd,bsge,bshe,bshe,bhs,bs,bs->bshd,bsgd,bsge"},
        {"bshd,bsgd,bsge,bshr,bsr,bs,bs->bshe,bhs",
         "bshd,bsgd,bsge,bshr,bsr,bshe,bshe,bhs,bs,bs->bshd,bsgd,bsge,bshr,bsr"}};
    int64_t ext[26] = {
        [1] = batch, [3] = w.d, [4] = w.e, [6] = heads / 2, [7] = heads, [17] = w.r, [18] = seq};
    struct attention_operands o;
    rig_case(c, a, grad ? OP_ATTENTION_GRAD : OP_ATTENTION, einsum[w.r > 0][grad], ext);
    assert_int_equal(attention_operands(c->op, c->nin, &o), 0);
    c->attr.scale = 0.25f;
    c->attr.group = 2;
    c->attr.in_order = true;
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct ref_tensor *x = k < c->nin ? &c->in[k] : &c->start[k - c->nin];
        bool ids = x->dtype == DT_I32, lse = x == (grad ? &c->in[o.lse] : &c->start[ATTENTION_LSE]);
        x->dtype = ids ? DT_I32 : lse ? DT_F32 : DT_BF16;
        rig_fill(x, (uint64_t)k + 1, -1, 1);
        for (int64_t i = 0; ids && i < shape_count(&x->shape); i++)
            x->v[i] = (double)(i % seq);
    }
    rig_attend(c);
}

static void make_case(struct rig_case *c, struct arena *a, bool grad, int64_t batch, int64_t seq,
                      int64_t heads)
{
    make_pairs_of(c, a, grad, batch, seq, heads, (struct widths){16, 16, 0});
}

static bool same(const struct rig_case *c, double *const a[OP_MAX_OUT], double *const b[OP_MAX_OUT])
{
    bool is = true;
    for (int k = 0; k < c->nout; k++)
        is =
            is && memcmp(a[k], b[k], (size_t)shape_count(&c->start[k].shape) * sizeof(double)) == 0;
    return is;
}

static void two_runs_give_the_same_bits_unless_the_job_allows_others(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct arena a = {0};
        struct rig r;
        struct rig_case c;
        double *first[OP_MAX_OUT], *again[OP_MAX_OUT], *want[OP_MAX_OUT];
        bool deterministic = t & 2;
        device_open(&r, deterministic);
        make_case(&c, &a, t & 1, 2, 50, 4);
        rig_reference(&c, &a, want);
        rig_run(&r, &c, &a, first);
        rig_run(&r, &c, &a, again);
        assert_int_equal(same(&c, first, again), deterministic);
        for (int k = 0; k < c.nout; k++)
            rig_compare("in order", first[k], want[k], shape_count(&c.start[k].shape), 0x1p-6,
                        2e-2);
        rig_close(&r);
        arena_clear(&a);
    }
}

// Windows, caps, the keys ahead, values of another width and second pairs, with widths that units
// of 16, 8 and 4 bytes divide, are in the graphs that cuDNN gets. Its name in the choices shows
// that it served the call.
static void cudnn_serves_windows_caps_other_widths_second_pairs_and_encoders(void **state)
{
    static const struct {
        const char *says;
        struct widths w;
        int64_t window;
        bool ahead;
        float cap;
    } cases[] = {
        {"x16 window 9 in ", {16, 16, 0}, 9, false, 0},
        {"x16:24 in ", {16, 24, 0}, 0, false, 0},
        {"x16:8 in ", {16, 8, 0}, 0, false, 0},
        {"x16 ahead in ", {16, 16, 0}, 0, true, 0},
        {"x16 capped in ", {16, 16, 0}, 0, false, 0.5f},
        {"x16:8 window 20 capped in ", {16, 8, 0}, 20, false, 2},
        {"x16+8:16 in ", {16, 16, 8}, 0, false, 0},
        {"x16+32:16 in ", {16, 16, 32}, 0, false, 0},
        {"x16+8 in ", {16, 24, 8}, 0, false, 0},
        {"x16+24:8 window 20 capped in ", {16, 8, 24}, 20, false, 2},
        {"x12+4:8 in ", {12, 8, 4}, 0, false, 0},
        {"x10+14:16 in ", {10, 16, 14}, 0, false, 0},
        {"x16+8:16 ahead in ", {16, 16, 8}, 0, true, 0},
    };
    (void)state;
    for (size_t t = 0; t < 2 * sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct buf text = {0};
        struct err e = {0};
        struct rig r;
        struct rig_case c;
        double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
        device_open(&r, true);
        make_pairs_of(&c, &a, t % 2, 2, 50, 4, cases[t / 2].w);
        c.attr.window = cases[t / 2].window;
        c.attr.ahead = cases[t / 2].ahead;
        c.attr.cap = cases[t / 2].cap;
        rig_reference(&c, &a, want);
        rig_run(&r, &c, &a, got);
        for (int k = 0; k < c.nout; k++)
            rig_compare(cases[t / 2].says, got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6,
                        2e-2);
        if (r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s", e.text);
        if (!strstr(buf_str(&text), cases[t / 2].says) || !strstr(buf_str(&text), "= cudnn-"))
            fail_msg("no%s in %s", cases[t / 2].says, buf_str(&text));
        rig_close(&r);
        buf_clear(&text);
        arena_clear(&a);
    }
}

// q, k and v, or k and v behind q, in the rows of one operand: cuDNN reads and writes them there.
static void cudnn_serves_packed_heads_in_place(void **state)
{
    static const char *const einsum[2][2] = {
        {"bshd,bspgd,bs,bs->bshd,bhs", "bshd,bspgd,bshd,bshd,bhs,bs,bs->bshd,bspgd"},
        {"bsphd,bs,bs->bshd,bhs", "bsphd,bshd,bshd,bhs,bs,bs->bsphd"}};
    (void)state;
    for (int t = 0; t < 4; t++) {
        const bool grad = t & 1, three = t & 2;
        struct arena a = {0};
        struct buf text = {0};
        struct err e = {0};
        struct rig r;
        struct rig_case c;
        struct attention_operands o;
        double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
        int64_t ext[26] = {[1] = 2, [3] = 16, [6] = 2, [7] = 4, [15] = three ? 3 : 2, [18] = 50};
        rig_case(&c, &a, grad ? OP_ATTENTION_PACKED_GRAD : OP_ATTENTION_PACKED, einsum[three][grad],
                 ext);
        assert_int_equal(attention_operands(c.op, c.nin, &o), 0);
        c.attr.scale = 0.25f;
        c.attr.group = three ? 1 : 2;
        c.attr.in_order = true;
        for (int k = 0; k < c.nin + c.nout; k++) {
            struct ref_tensor *x = k < c.nin ? &c.in[k] : &c.start[k - c.nin];
            bool lse = x == (grad ? &c.in[o.lse] : &c.start[ATTENTION_LSE]);
            x->dtype = x->dtype == DT_I32 ? DT_I32 : lse ? DT_F32 : DT_BF16;
            rig_fill(x, (uint64_t)k + 1, -1, 1);
            for (int64_t i = 0; x->dtype == DT_I32 && i < shape_count(&x->shape); i++)
                x->v[i] = (double)(i % 50);
        }
        rig_attend(&c);
        device_open(&r, true);
        rig_reference(&c, &a, want);
        rig_run(&r, &c, &a, got);
        for (int k = 0; k < c.nout; k++)
            rig_compare("packed", got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6, 2e-2);
        if (r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s", e.text);
        if (!strstr(buf_str(&text), three ? "packed 3" : "packed 2") ||
            !strstr(buf_str(&text), "= cudnn-"))
            fail_msg("no packed choice of cuDNN in %s", buf_str(&text));
        rig_close(&r);
        buf_clear(&text);
        arena_clear(&a);
    }
}

// ---- scratch -----------------------------------------------------------------------------------

static struct tensor place(const struct rig *r, const struct ref_tensor *t)
{
    size_t size = dtype_size(t->dtype), n = (size_t)shape_count(&t->shape);
    char *host = calloc(n, size);
    assert_non_null(host);
    for (size_t i = 0; i < n; i++) {
        float f = (float)t->v[i];
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        if (t->dtype == DT_I32)
            ((int32_t *)(void *)host)[i] = (int32_t)t->v[i];
        else if (t->dtype == DT_F32)
            ((float *)(void *)host)[i] = f;
        else
            ((uint16_t *)(void *)host)[i] = (uint16_t)(u >> 16);
    }
    struct tensor out = {rig_memory(r, host, n * size), t->dtype, t->shape};
    free(host);
    return out;
}

struct placed {
    struct op_call call;
    struct rig *r;
};

static void place_case(struct placed *p, struct rig *r, const struct rig_case *c, size_t scratch)
{
    *p = (struct placed){.call = {.op = c->op, .attr = &c->attr, .nin = c->nin, .nout = c->nout},
                         .r = r};
    for (int k = 0; k < c->nin; k++)
        p->call.in[k] = place(r, &c->in[k]);
    for (int k = 0; k < c->nout; k++)
        p->call.out[k] = place(r, &c->start[k]);
    p->call.workspace = rig_memory(r, NULL, scratch);
    p->call.workspace_bytes = scratch;
}

static void read_out(const struct placed *p, int k, struct arena *a, double **out)
{
    const struct tensor *t = &p->call.out[k];
    size_t n = (size_t)shape_count(&t->shape), size = dtype_size(t->dtype);
    void *host = calloc(n, size);
    struct err e = {0};
    assert_non_null(host);
    if (p->r->backend->stream.copy(p->r->q, host, t->data, n * size, &e) ||
        p->r->backend->stream.sync(p->r->q, &e))
        fail_msg("%s", e.text);
    out[k] = arena_array(a, double, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t u =
            t->dtype == DT_F32 ? ((uint32_t *)host)[i] : (uint32_t)((uint16_t *)host)[i] << 16;
        float f;
        memcpy(&f, &u, sizeof f);
        out[k][i] = (double)f;
    }
    free(host);
}

static void placed_clear(struct placed *p)
{
    for (int k = 0; k < p->call.nin; k++)
        rig_free(p->r, p->call.in[k].data);
    for (int k = 0; k < p->call.nout; k++)
        rig_free(p->r, p->call.out[k].data);
    rig_free(p->r, p->call.workspace);
}

static void run_with(struct rig *r, const struct rig_case *c, size_t scratch, struct arena *a,
                     double *got[OP_MAX_OUT])
{
    struct placed p;
    struct err e = {0};
    place_case(&p, r, c, scratch);
    if (r->backend->op.run[c->op](r->q, &p.call, &e))
        fail_msg("with %zu bytes: %s", scratch, e.text);
    for (int k = 0; k < c->nout; k++)
        read_out(&p, k, a, got);
    placed_clear(&p);
}

// 6 samples of 8 heads of 40 positions. A head's scratch: 160 bytes of numbers, 2,560 of shared
// gradients, 16,384 of scores. Enough for 2 samples, for one, for two heads of one: a head's bits
// are those of the whole call's. For none our own kernels take 4 bytes a row; they round no weights.
static void little_scratch_is_served_part_by_part(void **state)
{
    static const size_t scratch[] = {2 * 8 * 19104 + 4096, 8 * 19104 + 4096, 2 * 19104 + 4096,
                                     4 * 6 * 8 * 40};
    enum { N = sizeof scratch / sizeof *scratch };
    struct arena a = {0};
    struct rig r;
    struct rig_case c;
    double *got[OP_MAX_OUT], *want[OP_MAX_OUT], *whole[OP_MAX_OUT];
    (void)state;
    device_open(&r, true);
    make_case(&c, &a, true, 6, 40, 8);
    rig_reference(&c, &a, want);
    run_with(&r, &c, 4 << 20, &a, whole);
    for (int t = 0; t < N; t++) {
        run_with(&r, &c, scratch[t], &a, got);
        assert_int_equal(same(&c, got, whole), t < N - 1);
        for (int k = 0; k < c.nout; k++)
            rig_compare("in parts", got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6, 2e-2);
    }
    rig_close(&r);
    arena_clear(&a);
}

// Joined rows of 16 + 8 elements: of a head 1,920 bytes of queries and as many of gradients, of a
// key head the same, and behind them 40 · 8 floats of what two heads at a time add to the shared
// key's gradient. Enough for all samples, for two, for one, for two heads of one: whoever adds, the
// bits are the same.
static void a_second_pair_is_served_part_by_part(void **state)
{
    enum { HEAD = 160 + 16384 + 2 * 2 * 40 * (24 + 16) + 2 * 1920 + 1920 + 64, SLACK = 8192 };
    static const struct {
        size_t scratch;
        const char *choice;
    } each[] = {{6 * 8 * HEAD + SLACK, "-6x8\n"},
                {2 * 8 * HEAD + SLACK, "-2x8\n"},
                {8 * HEAD + SLACK, "-1x8\n"},
                {2 * HEAD + SLACK, "-1x2\n"},
                {4 * (6 * 8 * 40 + 6 * 40 * 4 * 8), "= own\n"}};
    enum { N = sizeof each / sizeof *each };
    struct arena a = {0};
    struct rig_case c;
    double *want[OP_MAX_OUT], *whole[OP_MAX_OUT];
    (void)state;
    make_pairs_of(&c, &a, true, 6, 40, 8, (struct widths){16, 16, 8});
    rig_reference(&c, &a, want);
    for (int t = 0; t < N; t++) {
        struct buf text = {0};
        struct err e = {0};
        struct rig r;
        double *got[OP_MAX_OUT];
        device_open(&r, true);
        run_with(&r, &c, each[t].scratch, &a, got);
        if (r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s", e.text);
        if (!strstr(buf_str(&text), each[t].choice))
            fail_msg("no %s in %s", each[t].choice, buf_str(&text));
        if (t == 0)
            memcpy(whole, got, sizeof got);
        assert_int_equal(same(&c, got, whole), t < N - 1);
        for (int k = 0; k < c.nout; k++)
            rig_compare("in parts", got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6, 2e-2);
        rig_close(&r);
        buf_clear(&text);
    }
    arena_clear(&a);
}

static void no_scratch_at_all_is_refused(void **state)
{
    struct arena a = {0};
    struct rig r;
    struct rig_case c;
    struct placed p;
    struct err e = {0};
    (void)state;
    device_open(&r, true);
    make_case(&c, &a, true, 1, 40, 2);
    place_case(&p, &r, &c, 4 * 40 * 2 - 4);
    assert_int_equal(r.backend->op.run[c.op](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "the workspace does not hold a number a row"));
    placed_clear(&p);
    rig_close(&r);
    arena_clear(&a);
}

// ---- a captured step ---------------------------------------------------------------------------

static void a_captured_call_runs_when_the_graph_does(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        struct arena a = {0};
        struct rig r;
        struct rig_case c;
        struct placed p;
        struct err e = {0};
        void *graph = NULL;
        double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
        device_open(&r, true);
        make_pairs_of(&c, &a, true, 1, 40, 2, (struct widths){16, 16, t == 2 ? 8 : 0});
        c.attr.in_order = t > 0; // cuDNN's, else our kernels
        rig_reference(&c, &a, want);
        place_case(&p, &r, &c, 1 << 20);
        if (r.backend->choice->tune(r.q, &p.call, false, &e) || r.backend->graph->begin(r.q, &e) ||
            r.backend->op.run[c.op](r.q, &p.call, &e) || r.backend->graph->end(r.q, &graph, &e) ||
            r.backend->graph->launch(r.q, graph, &e))
            fail_msg("%s", e.text);
        for (int k = 0; k < c.nout; k++) {
            read_out(&p, k, &a, got);
            rig_compare("captured", got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6, 2e-2);
        }
        r.backend->graph->destroy(graph);
        placed_clear(&p);
        rig_close(&r);
        arena_clear(&a);
    }
}

// Building an engine would end the capture. The call is refused instead, the capture of other work
// stands, and once the call was tuned it is captured.
static void no_engine_is_built_inside_a_capture(void **state)
{
    struct arena a = {0};
    struct buf text = {0};
    struct rig r;
    struct rig_case c;
    struct placed p;
    struct err e = {0};
    void *graph = NULL;
    (void)state;
    device_open(&r, true);
    make_case(&c, &a, true, 1, 40, 2);
    place_case(&p, &r, &c, 1 << 20);
    assert_int_equal(r.backend->graph->begin(r.q, &e), 0);
    assert_int_equal(r.backend->op.run[c.op](r.q, &p.call, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "tune it first"));
    assert_int_equal(r.backend->graph->end(r.q, &graph, &e), 0);
    r.backend->graph->destroy(graph);
    assert_int_equal(r.backend->choice->write(r.device, &text, &e), 0);
    assert_null(strstr(buf_str(&text), "attention_grad"));
    if (r.backend->choice->tune(r.q, &p.call, false, &e) || r.backend->graph->begin(r.q, &e) ||
        r.backend->op.run[c.op](r.q, &p.call, &e) || r.backend->graph->end(r.q, &graph, &e) ||
        r.backend->graph->launch(r.q, graph, &e) || r.backend->stream.sync(r.q, &e))
        fail_msg("%s", e.text);
    r.backend->graph->destroy(graph);
    placed_clear(&p);
    rig_close(&r);
    buf_clear(&text);
    arena_clear(&a);
}

// ---- the record --------------------------------------------------------------------------------

static void the_record_names_the_library(void **state)
{
    struct rig r;
    (void)state;
    device_open(&r, true);
    assert_non_null(strstr(r.info.libraries, " cudnn 9.16.0"));
    rig_close(&r);
}

// An engine that adds dq in no order keeps no gradient of each score: the same scratch serves more
// heads of it at a time.
static void the_choices_say_who_serves_a_shape(void **state)
{
    static const struct {
        int64_t heads;
        size_t scratch;
        const char *key, *choice[2]; // where the job allows other bits, and where not
    } cases[] = {
        {2, 1 << 20, "1x40x2/1x16 in 1048576", {"cudnn-9.16.0-1x2-varies", "cudnn-9.16.0-1x2"}},
        {4, 1 << 20, "1x40x4/2x16 in 1048576", {"cudnn-9.16.0-1x4-varies", "cudnn-9.16.0-1x4"}},
        {4, 65536, "1x40x4/2x16 in 65536", {"cudnn-9.16.0-1x4-varies", "cudnn-9.16.0-1x2"}},
        {2, 4096, "1x40x2/1x16 in 4096", {"own", "own"}}};
    struct arena a = {0};
    struct buf text = {0};
    struct rig r;
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        struct rig_case c;
        struct placed p;
        struct err e = {0};
        size_t t = i / 2, deterministic = i % 2;
        char line[160];
        device_open(&r, deterministic);
        snprintf(line, sizeof line, "attention_grad %s bytes = %s\n", cases[t].key,
                 cases[t].choice[deterministic]);
        make_case(&c, &a, true, 1, 40, cases[t].heads);
        place_case(&p, &r, &c, cases[t].scratch);
        buf_reset(&text);
        if (r.backend->choice->tune(r.q, &p.call, false, &e) ||
            r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s", e.text);
        if (!strstr(buf_str(&text), line))
            fail_msg("no %s in %s", line, buf_str(&text));
        placed_clear(&p);
        rig_close(&r);
    }
    buf_clear(&text);
    arena_clear(&a);
}

// The plan's scratch holds all heads of all samples at once; the switch offers less of it. The key
// says how much, and the numbers are the whole call's.
static void a_switch_offers_less_than_was_planned(void **state)
{
    static const struct {
        const char *most, *line; // MiB
    } cases[] = {{"4", " 6x40x8/4x16 in 2097152 bytes = cudnn-9.16.0-6x8\n"},
                 {"1", " 6x40x8/4x16 in 1048576 bytes = cudnn-9.16.0-6x8\n"},
                 {"0", " 6x40x8/4x16 in 0 bytes = own\n"}};
    struct arena a = {0};
    struct buf text = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        struct rig_case c;
        struct placed p;
        struct err e = {0};
        setenv("WEFT_CUDA_ATTENTION_SCRATCH", cases[i].most, 1);
        device_open(&r, true);
        unsetenv("WEFT_CUDA_ATTENTION_SCRATCH");
        make_case(&c, &a, true, 6, 40, 8);
        place_case(&p, &r, &c, 2 << 20);
        buf_reset(&text);
        if (r.backend->choice->tune(r.q, &p.call, false, &e) ||
            r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s", e.text);
        if (!strstr(buf_str(&text), cases[i].line))
            fail_msg("no%s in %s", cases[i].line, buf_str(&text));
        assert_non_null(strstr(buf_str(&text), ", WEFT_CUDA_ATTENTION_SCRATCH=")); // the owner
        placed_clear(&p);
        rig_close(&r);
    }
    buf_clear(&text);
    arena_clear(&a);
}

// Seen when the shape is tuned, while there is still a choice; what was tuned is not tried again.
// Of what cannot even be built, the call itself finds out. The error that the library's failure
// left with CUDA's runtime is not our own kernels', which are launched next.
static void what_the_library_cannot_build_or_start_is_left_to_our_kernels(void **state)
{
    static const struct {
        const char *scene;
        bool tuned;
    } cases[] = {{"dnn_stuck", true}, {"dnn_unbuilt", true}, {"dnn_unbuilt", false}};
    (void)state;
    for (size_t t = 0; t < 2 * sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct buf text = {0};
        struct rig r;
        struct rig_case c;
        struct placed p;
        struct err e = {0};
        double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
        device_open(&r, true);
        make_case(&c, &a, t % 2, 1, 40, 2);
        rig_reference(&c, &a, want);
        place_case(&p, &r, &c, 1 << 20);
        setenv("WEFT_FAKE_CUDA", cases[t / 2].scene, 1);
        if (cases[t / 2].tuned && (r.backend->choice->tune(r.q, &p.call, false, &e) ||
                                   r.backend->choice->tune(r.q, &p.call, true, &e)))
            fail_msg("%s: %s", cases[t / 2].scene, e.text);
        if (r.backend->op.run[c.op](r.q, &p.call, &e) ||
            r.backend->choice->write(r.device, &text, &e))
            fail_msg("%s: %s", cases[t / 2].scene, e.text);
        unsetenv("WEFT_FAKE_CUDA");
        assert_non_null(strstr(buf_str(&text), " 1x40x2/1x16 in 1048576 bytes = own\n"));
        for (int k = 0; k < c.nout; k++) {
            read_out(&p, k, &a, got);
            rig_compare("own", got[k], want[k], shape_count(&c.start[k].shape), 0x1p-6, 2e-2);
        }
        placed_clear(&p);
        rig_close(&r);
        buf_clear(&text);
        arena_clear(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_runs_give_the_same_bits_unless_the_job_allows_others),
        cmocka_unit_test(cudnn_serves_packed_heads_in_place),
        cmocka_unit_test(cudnn_serves_windows_caps_other_widths_second_pairs_and_encoders),
        cmocka_unit_test(little_scratch_is_served_part_by_part),
        cmocka_unit_test(a_second_pair_is_served_part_by_part),
        cmocka_unit_test(no_scratch_at_all_is_refused),
        cmocka_unit_test(a_switch_offers_less_than_was_planned),
        cmocka_unit_test(a_captured_call_runs_when_the_graph_does),
        cmocka_unit_test(no_engine_is_built_inside_a_capture),
        cmocka_unit_test(the_record_names_the_library),
        cmocka_unit_test(the_choices_say_who_serves_a_shape),
        cmocka_unit_test(what_the_library_cannot_build_or_start_is_left_to_our_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
