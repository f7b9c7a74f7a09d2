// SPDX-License-Identifier: Apache-2.0
// Every product that the five models are made of, under every setting of the compiler's tests, as
// programs for the backend have it: transposes, batches, sums of batches, contributions, dtypes,
// fused chains, and where in their buffers the operands begin. Each different one is run and held
// against the reference; where a backend chooses algorithms some are timed first.
//
// A fixed part of the settings; WEFT_LONG=1: all.
#include "tests/ops/everywhere.h"

#include "common/base/map.h"
#include "common/compile/graph/optable.h"
#include "common/op/chain.h"
#include "tests/unit/mesh_settings.h"

enum { PLACES = OP_MAX_IN + OP_MAX_OUT, SCRATCH = 1 << 20 };

static struct rig rig;
static struct map seen; // what was run, by its text
static int kinds[2];    // of them: products, fused ones

// ---- a call of a program -----------------------------------------------------------------------

struct found {
    struct rig_case c;
    int place[PLACES]; // bytes behind a multiple of 16 at which an operand begins, for rank 0
};

static struct ref_tensor operand_of(const struct program *p, int value, struct arena *a)
{
    const struct value *v = &p->graph->values[value];
    struct ref_tensor t = {.shape = spec_local(&v->spec, &p->mesh, &v->shape), .dtype = v->dtype};
    t.v = arena_array(a, double, (size_t)shape_count(&t.shape));
    return t;
}

static int place_of(const struct program *p, const struct view *v)
{
    return (int)((p->buffers[v->buffer].offset + v->offset) % 16);
}

static void call_find(const struct program *p, const struct instr *i, struct arena *a,
                      struct found *f)
{
    const struct node *n = &p->graph->nodes[i->node];
    f->c = (struct rig_case){
        .op = i->op, .attr = n->attr, .nin = i->nin, .nout = i->nout, .accumulate = i->accumulate};
    for (int k = 0; k < i->nin; k++) {
        f->c.in[k] = operand_of(p, n->in[k], a);
        f->place[k] = place_of(p, &i->in[k]);
    }
    for (int k = 0; k < i->nout; k++) {
        f->c.start[k] = operand_of(p, n->out[k], a);
        f->place[i->nin + k] = place_of(p, &i->out[k]);
    }
}

// All that makes a difference to the kernels.
static void call_print(const struct found *f, struct buf *out)
{
    const struct rig_case *c = &f->c;
    buf_printf(out, "%s%s%s", op_name(c->op), c->accumulate ? "+" : "",
               c->attr.tf32 ? " tf32" : "");
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct ref_tensor *t = k < c->nin ? &c->in[k] : &c->start[k - c->nin];
        buf_printf(out, "%s%s@%d", k < c->nin ? " " : " -> ", dtype_name(t->dtype), f->place[k]);
        for (int d = 0; d < t->shape.n; d++)
            buf_printf(out, " %c%lld", 'a' + c->attr.label[k][d], (long long)t->shape.dim[d]);
    }
    for (int s = 0; c->op == OP_LINEAR && s < c->attr.chain->steps; s++) {
        const struct op_step *step = &c->attr.chain->step[s];
        buf_printf(out, " %s(%d %d)", op_name(step->op), step->in[0], step->in[1]);
    }
    for (int k = 0; c->op == OP_LINEAR && k < c->nout; k++)
        buf_printf(out, " r%d", c->attr.chain->out[k]);
}

// ---- run ---------------------------------------------------------------------------------------

static void words_of(const struct ref_tensor *t, char *to, bool store)
{
    for (int64_t i = 0; i < shape_count(&t->shape); i++) {
        float f = (float)t->v[i];
        uint32_t u;
        uint16_t half;
        if (store) {
            memcpy(&u, &f, sizeof u);
            half = (uint16_t)(u >> 16);
            memcpy(to + (size_t)i * dtype_size(t->dtype), t->dtype == DT_F32 ? (void *)&f : &half,
                   dtype_size(t->dtype));
            continue;
        }
        memcpy(&f, to + i * 4, t->dtype == DT_F32 ? 4 : 0);
        memcpy(&half, to + i * 2, sizeof half);
        u = (uint32_t)half << 16;
        if (t->dtype == DT_BF16)
            memcpy(&f, &u, sizeof f);
        t->v[i] = (double)f;
    }
}

static struct tensor put(const struct ref_tensor *t, int place, void **memory)
{
    size_t bytes = (size_t)shape_count(&t->shape) * dtype_size(t->dtype) + (size_t)place;
    char *host = calloc(1, bytes);
    assert_non_null(host);
    words_of(t, host + place, true);
    *memory = rig_memory(&rig, host, bytes);
    free(host);
    return (struct tensor){(char *)*memory + place, t->dtype, t->shape};
}

static void get(const struct tensor *t, struct ref_tensor *to)
{
    size_t bytes = (size_t)shape_count(&t->shape) * dtype_size(t->dtype);
    char *host = malloc(bytes);
    assert_non_null(host);
    rig_read(&rig, host, t->data, bytes);
    words_of(to, host, false);
    free(host);
}

// One for all calls: a program's are run one after the other in one, too. CUDA's may have less than
// is planned: the emulated device maps all of its memory again at each wait.
static struct {
    void *memory;
    size_t bytes;
} scratch;

static void scratch_give(struct op_call *call)
{
    size_t want = rig_is_cuda() ? SCRATCH : op_workspace(call, BACKEND_CPU);
    if (want > scratch.bytes) {
        if (scratch.memory)
            rig_free(&rig, scratch.memory);
        scratch.memory = rig_memory(&rig, NULL, want);
        scratch.bytes = want;
    }
    call->workspace = scratch.memory;
    call->workspace_bytes = want;
}

// False: it was refused, and that is wrong.
static bool call_run(const struct found *f, const char *what, bool tuned, double *got[OP_MAX_OUT])
{
    const struct rig_case *c = &f->c;
    struct op_call call = {
        .op = c->op, .attr = &c->attr, .nin = c->nin, .nout = c->nout, .accumulate = c->accumulate};
    void *memory[PLACES];
    struct err e = {0};
    for (int k = 0; k < c->nin; k++)
        call.in[k] = put(&c->in[k], f->place[k], &memory[k]);
    for (int k = 0; k < c->nout; k++)
        call.out[k] = put(&c->start[k], f->place[c->nin + k], &memory[c->nin + k]);
    scratch_give(&call);
    tuned = tuned && rig.backend->choice;
    int rc = tuned ? rig.backend->choice->tune(rig.q, &call, true, &e) : 0;
    if (tuned && !rc) {
        for (int k = 0; k < c->nout; k++) { // written over
            rig_free(&rig, memory[c->nin + k]);
            call.out[k] = put(&c->start[k], f->place[c->nin + k], &memory[c->nin + k]);
        }
    }
    rc = rc ? rc : rig.backend->op.run[c->op](rig.q, &call, &e);
    if (rc)
        rig_wrong("%s: %s", what, e.text);
    if (rig.backend->stream.sync(rig.q, &e))
        fail_msg("%s: %s", what, e.text);
    for (int k = 0; k < c->nout; k++) {
        struct ref_tensor to = c->start[k];
        to.v = got[k];
        get(&call.out[k], &to);
    }
    for (int k = 0; k < c->nin + c->nout; k++)
        rig_free(&rig, memory[k]);
    return !rc;
}

// bf16: the product, then the chain's end are rounded; numbers are about 1.
static void call_check(struct found *f, const char *what, struct arena *a)
{
    struct rig_case *c = &f->c;
    double *want[OP_MAX_OUT], *got[OP_MAX_OUT];
    for (int k = 0; k < c->nin; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, -0.5, 0.5);
    for (int k = 0; k < c->nout; k++) {
        rig_fill(&c->start[k], 9, -1, 1);
        got[k] = arena_array(a, double, (size_t)shape_count(&c->start[k].shape));
    }
    rig_reference(c, a, want);
    bool ran = call_run(f, what, kinds[0] % 16 == 0, got);
    for (int k = 0; ran && k < c->nout; k++) {
        bool half = c->start[k].dtype == DT_BF16;
        rig_compare(what, got[k], want[k], shape_count(&c->start[k].shape),
                    c->attr.tf32 ? 2e-3
                    : half       ? 0x1p-6
                                 : 2e-6,
                    c->attr.tf32 ? 2e-3
                    : half       ? 0x1p-6
                                 : 1e-5);
    }
}

static void program_check(const struct program *p)
{
    static char here;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *at = &p->instrs[i];
        if (at->kind != INSTR_OP || (!op_is(at->op, OP_IS_PRODUCT)))
            continue;
        struct arena a = {0};
        struct found f;
        struct buf text = {0};
        call_find(p, at, &a, &f);
        call_print(&f, &text);
        if (!map_get(&seen, buf_str(&text))) {
            map_put(&seen, buf_str(&text), &here);
            kinds[at->op == OP_LINEAR]++;
            call_check(&f, buf_str(&text), &a);
        }
        buf_clear(&text);
        arena_clear(&a);
    }
}

static void setting_check(const struct model *m, struct setting s, const char *compute)
{
    char more[300];
    struct fixture f;
    const char *own = strstr(s.more, "precision") ? "" : compute;
    snprintf(more, sizeof more, "%s%sresources: {kind: %s}\n", s.more, own, rig_backend());
    s.more = more;
    if (compile_setting(&f, m, &s))
        fail_msg("%s on {%s}: %s", m->name, s.mesh, f.e.text);
    for (int k = 0; k < PROGRAM_KINDS; k++)
        for (int stage = 0; stage < f.c.nstages && compiled_has(&f.c, k); stage++)
            program_check(compiled_program(&f.c, (enum program_kind)k, stage));
    fixture_clear(&f);
}

static void every_product_of_every_model_on_every_mesh_is_right(void **state)
{
    static const char *const computes[] = {"", "precision: {compute: bf16}\n",
                                           "precision: {compute: tf32}\n"};
    int step = getenv("WEFT_LONG") ? 1 : 7, turn = 0;
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int s = 0; s < SETTINGS; s++)
            for (int t = 0; t < 3; t++)
                if (settings[s].models >> m & 1 && turn++ % step == 0)
                    setting_check(&models[m], settings[s], computes[t]);
    printf("%d different products, %d of them with a chain\n", kinds[0] + kinds[1], kinds[1]);
    assert_true(kinds[0] > 400 && kinds[1] > 100); // else what is looked at is not what is run
}

static int open_device(void **state)
{
    (void)state;
    rig_find_backend();
    rig_open(&rig, 1, NULL);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    if (scratch.memory)
        rig_free(&rig, scratch.memory);
    map_clear(&seen);
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_product_of_every_model_on_every_mesh_is_right),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
