// SPDX-License-Identifier: Apache-2.0
// bf16 compute and bf16 reductions: what is cast and when, what travels and is kept, worked out by
// hand; and that a mesh changes nothing but where numbers are rounded. The interpreter rounds where
// the program does, all else in double: cuts of the batch, under which every device's activations
// are bit for bit those of one, must give one device's gradients.
#include "common/compile/program/verify.h"
#include "common/explain/cost.h"
#include "tests/ops/reference.h"
#include "tests/unit/decoder_case.h"

static char text[1400];

static const char *with(const char *job, const char *precision)
{
    snprintf(text, sizeof text, "%sprecision: {%s}\n", job, precision);
    return text;
}

static const char *decoder(int model, const char *mesh, int microbatches, const char *sharding,
                           const char *precision)
{
    return with(decoder_text(models[model], mesh, microbatches, sharding), precision);
}

// ---- the same step on any mesh -----------------------------------------------------------------

static void run_step(struct fixture *f, struct interp *x, const char *job, bool whole)
{
    compile_text(f, job, 0);
    const struct graph *g = whole ? f->c.global[PROGRAM_TRAIN] : f->c.program[PROGRAM_TRAIN]->graph;
    interp_init(x, g, whole ? NULL : &f->c.mesh, (int)f->job.train.microbatches);
    set_params(x);
    decoder_step(x);
}

static double norm_of(const double *v, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sqrt(sum);
}

static double whole_norm(const struct interp *x)
{
    double sum = 0;
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_SUM || val->of < 0 || val->alias >= 0)
            continue;
        double *g = interp_get(x, val->name), n = norm_of(g, shape_count(&val->shape));
        sum += n * n;
        free(g);
    }
    return sqrt(sum);
}

// Each gradient within `slack` of its own norm or of a hundredth of all of them.
static void compare_gradients(const struct interp *one, const struct interp *many, double slack,
                              const char *what)
{
    double all = whole_norm(one);
    for (int v = 0; v < one->g->nvalues; v++) {
        const struct value *val = &one->g->values[v];
        if (val->kind != VALUE_SUM || val->of < 0 || val->alias >= 0)
            continue;
        int64_t n = shape_count(&val->shape);
        double *a = interp_get(one, val->name), *b = interp_get(many, val->name);
        double own = norm_of(a, n);
        for (int64_t i = 0; i < n; i++)
            b[i] -= a[i];
        double off = norm_of(b, n);
        if (!(off <= slack * fmax(own, all / 100)))
            fail_msg("%s: %s is off by %.3g of %.3g (all: %.3g)", what, val->name, off, own, all);
        free(a);
        free(b);
    }
}

static void mesh_case(int model, const char *mesh, const char *sharding, int microbatches,
                      const char *precision, double slack)
{
    struct fixture a, b;
    struct interp one, many;
    char what[200];
    snprintf(what, sizeof what, "%s on {%s} with %s", models[model], mesh, precision);
    run_step(&a, &one, decoder(model, "dp: 1", microbatches, "", "compute: bf16"), true);
    run_step(&b, &many, decoder(model, mesh, microbatches, sharding, precision), false);
    compare_gradients(&one, &many, slack, what);
    interp_clear(&one);
    interp_clear(&many);
    fixture_clear(&a);
    fixture_clear(&b);
}

static void a_cut_batch_gives_one_devices_gradients(void **state)
{
    static const char *const meshes[] = {"dp: 2", "fsdp: 2", "dp: 2, fsdp: 2", "pp: 2, dp: 2"};
    (void)state;
    for (int model = 0; model < MODELS; model++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
            mesh_case(model, meshes[i], "", 2, "compute: bf16", 1e-9);
}

// Each part of a sum is rounded, 2^-9 of itself at most, and parts may cancel.
static void a_cut_sum_differs_by_rounding(void **state)
{
    static const struct {
        const char *mesh, *sharding;
    } cases[] = {
        {"tp: 2", ""},
        {"tp: 4", ""},
        {"fsdp: 2, tp: 2", ""},
        {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"x: 2, y: 2", "rules: {batch: x, embed: y, heads: y}, gather: [x, y]"},
    };
    (void)state;
    for (int model = 0; model < MODELS; model++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            mesh_case(model, cases[i].mesh, cases[i].sharding, 2, "compute: bf16", 0.03);
}

// Two roundings and more, of parts that are larger than their sum.
static void sums_in_bf16_differ_by_their_rounding(void **state)
{
    static const char *const meshes[] = {"dp: 4", "fsdp: 2", "dp: 2, fsdp: 2", "pp: 2, dp: 2"};
    (void)state;
    for (int model = 0; model < MODELS; model++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
            mesh_case(model, meshes[i], "", 2, "compute: bf16, reduce: bf16", 0.01);
}

// Summed in bf16 the gradient that the update reads holds nothing a bf16 does not.
static void a_gradient_summed_in_bf16_is_one(void **state)
{
    struct fixture f;
    struct interp x;
    int wide = 0;
    (void)state;
    for (int half = 0; half < 2; half++) {
        run_step(&f, &x, decoder(0, "dp: 2", 1, "", half ? "reduce: bf16" : "reduce: f32"), false);
        double *g = interp_get(&x, "grad/layers/0/mlp/in/weight");
        for (int64_t i = 0; i < 24 * 24; i++)
            wide += g[i] != ref_bf16(g[i]);
        assert_true(half ? wide == 0 : wide > 500);
        wide = 0;
        free(g);
        interp_clear(&x);
        fixture_clear(&f);
    }
}

// ---- counted by hand ---------------------------------------------------------------------------

// Images 8 → 16 → 8 → 4 classes, 16 samples in two microbatches: weights of 128, 128 and 32 floats,
// biases of 16, 8 and 4 (test_compile_collectives.c has the same in f32).
#define MLP                                                           \
    "name: t\n"                                                       \
    "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n" \
    "data: {train: {images: i, labels: l}, batch: 16}\n"              \
    "optimizer: {kind: sgd}\n"                                        \
    "train: {steps: 1, microbatches: 2}\n"

static void expect_row(const struct cost *c, enum reshard_kind op, enum phase phase,
                       const char *tensor, enum dtype t, int64_t count, uint64_t bytes)
{
    for (int i = 0; i < c->ncollectives; i++) {
        const struct collective_row *r = &c->collectives[i];
        if (r->op != op || r->phase != phase || strcmp(r->tensor, tensor) != 0)
            continue;
        if (r->dtype != t || r->count != count || r->bytes != bytes)
            fail_msg("%s: %s, %lld times, %llu bytes", tensor, dtype_name(r->dtype),
                     (long long)r->count, (unsigned long long)r->bytes);
        return;
    }
    fail_msg("no %s of %s", reshard_kind_name(op), tensor);
}

// On four devices a ring sends 3/4 of what it gathers or scatters, 6/4 of what it sums.
static void gathers_are_of_half_the_bytes_and_gradients_of_all(void **state)
{
    struct fixture f;
    struct cost c;
    (void)state;
    compile_text(&f, with(MLP "mesh: {fsdp: 4}\n", "compute: bf16"), 0);
    cost_count(&f.c, &f.a, &c);
    expect_row(&c, RESHARD_ALL_GATHER, PHASE_FORWARD, "layers/0/weight", DT_BF16, 2, 384);
    expect_row(&c, RESHARD_ALL_GATHER, PHASE_FORWARD, "layers/2/weight", DT_BF16, 2, 96);
    expect_row(&c, RESHARD_ALL_GATHER, PHASE_BACKWARD, "layers/1/weight", DT_BF16, 2, 384);
    expect_row(&c, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD, "grad/layers/0/weight", DT_F32, 2, 768);
    expect_row(&c, RESHARD_ALL_REDUCE, PHASE_BACKWARD, "grad/layers/1/bias", DT_F32, 1, 48);
    expect_row(&c, RESHARD_ALL_REDUCE, PHASE_UPDATE, "metrics", DT_F32, 1, 30);
    assert_int_equal(c.ncollectives, 12); // as many as in f32
    fixture_clear(&f);
    compile_text(&f, with(MLP "mesh: {fsdp: 4}\n", "compute: bf16, reduce: bf16"), 0);
    cost_count(&f.c, &f.a, &c);
    expect_row(&c, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD, "grad/layers/0/weight", DT_BF16, 2, 384);
    expect_row(&c, RESHARD_ALL_REDUCE, PHASE_BACKWARD, "grad/layers/1/bias", DT_BF16, 1, 24);
    expect_row(&c, RESHARD_ALL_REDUCE, PHASE_UPDATE, "metrics", DT_F32, 1, 30);
    assert_int_equal(c.ncollectives, 12);
    fixture_clear(&f);
}

// Hidden activations are partial sums over tp: 8 samples of 8 in bf16, each of two microbatches.
static void activations_are_summed_in_their_own_dtype(void **state)
{
    struct fixture f;
    struct cost c;
    (void)state;
    compile_text(&f, with(MLP "mesh: {tp: 2}\n", "compute: bf16"), 0);
    cost_count(&f.c, &f.a, &c);
    expect_row(&c, RESHARD_ALL_REDUCE, PHASE_FORWARD, "layers/1/act_seq", DT_BF16, 2,
               2 * (8 * 8 * 2));
    fixture_clear(&f);
}

// Six parameters, each cast by the first microbatch alone, or none where the update writes their
// copies; the pixels by both.
static void expect_casts(struct fixture *f, bool fuse, int first, int second)
{
    int casts[2] = {0};
    f->job.train.fuse = fuse;
    assert_int_equal(compile_again(f), 0);
    const struct program *p = f->c.program[PROGRAM_TRAIN];
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_OP || in->op != OP_CAST)
            continue;
        assert_int_equal(in->phase, PHASE_FORWARD);
        casts[in->microbatch]++;
    }
    assert_int_equal(casts[0], first);
    assert_int_equal(casts[1], second);
}

static void a_parameter_is_cast_once_a_step_or_by_the_update(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, with(MLP "mesh: {fsdp: 2}\n", "compute: bf16"), 0);
    expect_casts(&f, false, 7, 1);
    expect_casts(&f, true, 1, 1);
    fixture_clear(&f);
}

// One device and microbatch of 16. Parameters, gradients (316 floats each) stay f32; adam's moments
// too; of each parameter there is a copy. What the backward reads of the forward's, in bf16: the
// pixels cast (16·8), both relus' outputs (16·16, 16·8), the logits (16·4); in f32 the rows'
// maximum and their sums (16 each). Labels and images are inputs.
static void memory_is_that_of_half_activations_and_whole_parameters(void **state)
{
    static const char job[] = "name: t\n"
                              "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n"
                              "mesh: {dp: 1}\n"
                              "data: {train: {images: i, labels: l}, batch: 16}\n"
                              "train: {steps: 1}\n";
    struct fixture f;
    (void)state;
    compile_text(&f, with(job, "compute: bf16"), 0);
    const struct memory *m = &f.c.memory;
    assert_int_equal(m->params, 4 * 316);
    assert_int_equal(m->grads, 4 * 316);
    assert_int_equal(m->optimizer, 2 * 4 * 316);
    assert_int_equal(m->copies, 2 * 316);
    assert_int_equal(m->stash, 2 * (128 + 256 + 128 + 64) + 4 * (16 + 16));
    fixture_clear(&f);
}

// ---- tf32, and whose scratch it is ------------------------------------------------------------

static int marked(const struct program *p, enum op op)
{
    int n = 0;
    for (int i = 0; i < p->ninstrs; i++)
        n += p->instrs[i].kind == INSTR_OP && p->instrs[i].op == op &&
             program_attr(p, &p->instrs[i])->tf32;
    return n;
}

// Three layers, two microbatches: three products forward, three of weights and two of activations
// backward (nothing wants the images' gradient), each twice.
static void tf32_marks_products_alone_and_changes_no_dtype(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, with(MLP "mesh: {dp: 1}\n", "compute: tf32"), 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    int all = 0;
    for (int op = 0; op < OP_COUNT; op++)
        all += marked(p, (enum op)op);
    assert_int_equal(marked(p, OP_MATMUL) + marked(p, OP_LINEAR), 16);
    assert_int_equal(all, 16);
    for (int v = 0; v < p->graph->nvalues; v++)
        assert_int_not_equal(p->graph->values[v].dtype, DT_BF16);
    assert_non_null(find_finding(&f, FINDING_TF32_IS_F32, NULL));
    fixture_clear(&f);
    compile_text(&f, with(MLP "mesh: {dp: 1}\n", "compute: f32"), 0);
    assert_int_equal(marked(f.c.program[PROGRAM_TRAIN], OP_MATMUL), 0);
    assert_int_equal(marked(f.c.program[PROGRAM_TRAIN], OP_LINEAR), 0);
    assert_null(find_finding(&f, FINDING_TF32_IS_F32, NULL));
    fixture_clear(&f);
}

// ---- determinism -------------------------------------------------------------------------------

// What the job allows is reported with its line, and that a CPU makes nothing of it. The program is the
// same: which algorithms may be used is the device's business.
static void a_plan_says_what_a_step_run_twice_may_come_to(void **state)
{
    static const struct {
        const char *device, *precision;
        enum finding_code code, other;
        const char *says;
    } cases[] = {
        {"cuda", "deterministic: false", FINDING_NOT_DETERMINISTIC, FINDING_DETERMINISTIC_ANYWAY,
         "precision.deterministic: false: a step run twice may differ in its last bits (line 8)"},
        {"cpu", "deterministic: false", FINDING_DETERMINISTIC_ANYWAY, FINDING_NOT_DETERMINISTIC,
         "precision.deterministic: false: on the CPU a step run twice gives the same bits all the "
         "same (line 8)"},
        {"cuda", "deterministic: true", FINDING_CODES, FINDING_NOT_DETERMINISTIC, NULL},
        {"cpu", "compute: f32", FINDING_CODES, FINDING_DETERMINISTIC_ANYWAY, NULL},
    };
    char hash[2][65] = {"", ""}; // of each device's programs
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        char job[700];
        snprintf(job, sizeof job, "%smesh: {dp: 1}\nresources: {kind: %s}\n", MLP, cases[i].device);
        compile_text(&f, with(job, cases[i].precision), 0);
        const struct finding *note = find_finding(&f, cases[i].code, NULL);
        assert_int_equal(note != NULL, cases[i].says != NULL);
        assert_null(find_finding(&f, cases[i].other, NULL));
        if (note) {
            assert_string_equal(note->message, cases[i].says);
            assert_string_equal(note->fix, "precision.deterministic=true");
            assert_string_equal(finding_severity(note->code), "note");
        }
        char *before = hash[i % 2];
        if (*before)
            assert_string_equal(f.c.hash, before);
        snprintf(before, 65, "%s", f.c.hash);
        fixture_clear(&f);
    }
}

// A library serves attention in bf16 alone. Here 64 heads' gradients would have 256 + 16,384 bytes
// each and get the 1 MiB that the job lets a library have, and 16 KiB beside it; in f32 that is for
// products, and our own kernels' numbers, a float a row, have room in it.
static void room_for_a_librarys_attention_is_only_planned_where_it_serves(void **state)
{
    static const struct {
        const char *precision;
        uint64_t scratch;
    } cases[] = {{"compute: f32", 1 << 20}, {"compute: bf16", (1 << 20) + (16 << 10)}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        const char *job = decoder_long("program: gpt2, embed: 64, heads: 8, head_dim: 8, mlp: 64",
                                       64, "dp: 1", 1, "", "");
        compile_text(&f, with(job, cases[i].precision), 0);
        f.job.resources.kind = JOB_CUDA;
        f.job.resources.scratch = 1; // MiB
        assert_int_equal(compile_again(&f), 0);
        assert_int_equal(f.c.memory.workspace, cases[i].scratch);
        fixture_clear(&f);
    }
}

// The CPU widens bf16 for its products, CUDA keeps room for a library's algorithm; and a plan says
// by its hash what it is for.
static void scratch_is_that_of_the_backend(void **state)
{
    struct fixture f;
    char on_cpu[65];
    (void)state;
    compile_text(&f, with(MLP "mesh: {dp: 1}\n", "compute: tf32"), 0);
    // The sum of squares over the largest gradient, 128 floats: a double each.
    assert_int_equal(f.c.memory.workspace, 8 * 128);
    snprintf(on_cpu, sizeof on_cpu, "%s", f.c.hash);
    f.job.resources.kind = JOB_CUDA;
    assert_int_equal(compile_again(&f), 0);
    assert_int_equal(f.c.memory.workspace, 32 << 20);
    uint64_t usual = f.c.memory.arena;
    f.job.resources.scratch = 128; // MiB, as the job says
    assert_int_equal(compile_again(&f), 0);
    assert_int_equal(f.c.memory.workspace, 128 << 20);
    assert_int_equal(f.c.memory.arena, usual + (96 << 20));
    f.job.resources.scratch = 0;
    assert_int_equal(compile_again(&f), 0);
    assert_string_not_equal(f.c.hash, on_cpu);
    assert_null(find_finding(&f, FINDING_TF32_IS_F32, NULL));
    fixture_clear(&f);
    compile_text(&f, with(MLP "mesh: {dp: 1}\n", "compute: bf16"), 0);
    assert_true(f.c.memory.workspace > 8 * 128);
    f.job.resources.kind = JOB_CUDA;
    assert_int_equal(compile_again(&f), 0);
    assert_int_equal(f.c.memory.workspace, 32 << 20);
    fixture_clear(&f);
}

// ---- every model -------------------------------------------------------------------------------

// The verifier holds every operand's dtype. Images as f32 are read beside activations in bf16, and
// beside a loss in f32.
static void every_model_builds_whatever_its_data_are(void **state)
{
    static const char *const jobs[] = {
        "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4, activation: tanh}\n"
        "data: {format: npy, dtype: f32, train: {images: i, labels: l}, eval: {images: i, labels: "
        "l}, batch: 16}\n",
        "model: {program: vae, inputs: 8, hidden: [16], latent: 4}\n"
        "data: {format: npy, dtype: u8, train: {images: i}, eval: {images: i}, batch: 16}\n",
        "model: {program: vae, inputs: 8, hidden: [16], latent: 4}\n"
        "data: {format: npy, dtype: f32, train: {images: i}, eval: {images: i}, batch: 16}\n",
        "model: {program: gpt2, layers: 2, embed: 24, heads: 4, seq: 8, vocab: 24, "
        "dropout: 0.1}\n"
        "data: {format: tokens, train: {tokens: t}, eval: {tokens: t}, batch: 16}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct fixture f;
        char job[800];
        snprintf(job, sizeof job, "name: t\n%smesh: {fsdp: 2, tp: 2}\ntrain: {steps: 1}\n",
                 jobs[i]);
        compile_text(&f, with(job, "compute: bf16, reduce: bf16"), 0);
        assert_true(compiled_has(&f.c, PROGRAM_EVAL) && !compiled_has(&f.c, PROGRAM_SAMPLE));
        fixture_clear(&f);
    }
}

// ---- the verifier ------------------------------------------------------------------------------

static int broken(struct fixture *f, enum op op, int operand, enum dtype t)
{
    struct err e = {0};
    compile_text(f, decoder(0, "dp: 1", 1, "", "compute: bf16"), 0);
    struct graph *g = (struct graph *)(uintptr_t)f->c.program[PROGRAM_TRAIN]->graph;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (n->kind != NODE_OP || n->op != op)
            continue;
        int v = operand < n->nin ? n->in[operand] : n->out[operand - n->nin];
        g->values[v].dtype = t;
        return verify_graph(g, &e);
    }
    fail_msg("no %s", op_name(op));
    return 0;
}

static void operands_of_two_dtypes_do_not_pass(void **state)
{
    static const struct {
        enum op op;
        int operand;
        enum dtype t;
    } cases[] = {
        {OP_ADD, 1, DT_F32},          {OP_MATMUL, 1, DT_F32},    {OP_NORM, 1, DT_F32},
        {OP_GELU, 1, DT_F32},         {OP_ATTENTION, 2, DT_F32}, {OP_ROW_MAX, 1, DT_BF16},
        {OP_ROW_SUM_EXP, 2, DT_BF16}, {OP_PICK, 2, DT_BF16},     {OP_EMBED, 2, DT_F32},
        {OP_EMBED_GRAD, 1, DT_I32},   {OP_SQNORM, 0, DT_BF16},   {OP_ADAM, 0, DT_BF16},
        {OP_ROW_EXP_MUL, 3, DT_F32},  {OP_NORM_GRAD, 3, DT_F32},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        if (!broken(&f, cases[i].op, cases[i].operand, cases[i].t))
            fail_msg("%s: operand %d may be %s", op_name(cases[i].op), cases[i].operand,
                     dtype_name(cases[i].t));
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_batch_gives_one_devices_gradients),
        cmocka_unit_test(a_cut_sum_differs_by_rounding),
        cmocka_unit_test(sums_in_bf16_differ_by_their_rounding),
        cmocka_unit_test(a_gradient_summed_in_bf16_is_one),
        cmocka_unit_test(gathers_are_of_half_the_bytes_and_gradients_of_all),
        cmocka_unit_test(activations_are_summed_in_their_own_dtype),
        cmocka_unit_test(a_parameter_is_cast_once_a_step_or_by_the_update),
        cmocka_unit_test(memory_is_that_of_half_activations_and_whole_parameters),
        cmocka_unit_test(tf32_marks_products_alone_and_changes_no_dtype),
        cmocka_unit_test(a_plan_says_what_a_step_run_twice_may_come_to),
        cmocka_unit_test(room_for_a_librarys_attention_is_only_planned_where_it_serves),
        cmocka_unit_test(scratch_is_that_of_the_backend),
        cmocka_unit_test(every_model_builds_whatever_its_data_are),
        cmocka_unit_test(operands_of_two_dtypes_do_not_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
