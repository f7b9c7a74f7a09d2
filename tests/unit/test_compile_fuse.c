// SPDX-License-Identifier: Apache-2.0
// Fusion: which nodes become one, counted by hand from each model's text; that a fused program is
// the one it was made from, in double precision; that what a plan counts stays; and that the
// verifier sees a fused node that is broken.
#include "common/explain/cost.h"
#include "common/op/chain.h"
#include "tests/unit/broken_graph.h"
#include "tests/unit/decoder_case.h"

// ---- which ----

// One line a fused node of a scope and phase, in order: "linear add gelu 2": op, steps, outputs.
static void fused_of(const struct graph *g, const char *scope, enum phase phase, struct buf *to)
{
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (n->kind != NODE_OP || !n->attr.chain || n->phase != phase ||
            strcmp(g->scopes[n->scope], scope) != 0)
            continue;
        buf_puts(to, op_name(n->op));
        for (int s = 0; s < n->attr.chain->steps; s++)
            buf_printf(to, " %s", op_name(n->attr.chain->step[s].op));
        buf_printf(to, " %d\n", n->nout);
    }
}

static void expect(const char *job, const char *scope, enum phase phase, const char *want)
{
    struct fixture f;
    struct buf got = {0};
    compile_text(&f, job, 0);
    fused_of(f.c.program[PROGRAM_TRAIN]->graph, scope, phase, &got);
    if (strcmp(buf_str(&got), want) != 0)
        fail_msg("%s of %s:\n%swhere these are wanted:\n%s", phase_name(phase), scope,
                 buf_str(&got), want);
    buf_clear(&got);
    fixture_clear(&f);
}

enum { GPT2, LLAMA, COOKBOOK };

// qkv and its bias; attn/out, its bias and the residual; mlp/in, its bias (which gelu's gradient
// reads) and gelu; mlp/out, its bias and the residual. Backward: gelu's gradient behind the product
// that makes its cotangent; the other products' results go to norms and sums.
static void a_gpt2_layer_is_four_products_with_all_between_them(void **state)
{
    (void)state;
    const char *job = decoder_text(models[GPT2], "dp: 1", 1, "");
    expect(job, "layers/1", PHASE_FORWARD,
           "linear add 1\nlinear add add 1\nlinear add gelu 2\nlinear add add 1\n");
    expect(job, "layers/1", PHASE_BACKWARD, "linear gelu_grad 1\n");
    // ln Σ + m − logit; the way back is in ROW_LOSS_BOTH.
    expect(job, "head", PHASE_FORWARD, "chain log add sub 1\n");
    expect(job, "head", PHASE_BACKWARD, "");
}

// The rows of attn/out and mlp/out are cut: what they make are parts of sums, and between them and
// their bias lies an all-reduce.
static void a_bias_behind_an_all_reduce_stays_there(void **state)
{
    (void)state;
    const char *job = decoder_text(models[GPT2], "tp: 2", 1, "");
    expect(job, "layers/1", PHASE_FORWARD,
           "linear add 1\nchain add add 1\nlinear add gelu 2\nchain add add 1\n");
    expect(job, "layers/1", PHASE_BACKWARD, "linear gelu_grad 1\n");
}

// attn/out and the residual; the gate, silu of it and, up being made before, their product, all
// three read by the backward; mlp/out and the residual. Backward: from the cotangent of the gated
// product, which nobody else reads, to those of up and gate; the norm's two and its three
// cotangents, the first of which is made alone, each added to the next product.
static void a_gated_activation_backward_is_one_node(void **state)
{
    (void)state;
    const char *job = decoder_text(models[LLAMA], "dp: 1", 1, "");
    expect(job, "layers/1", PHASE_FORWARD, "linear add 1\nlinear silu mul 3\nlinear add 1\n");
    expect(job, "layers/1", PHASE_BACKWARD,
           "linear mul mul silu_grad 2\nlinear add 1\nlinear add 1\n");
}

// No bias; the norm comes behind the residual, so each branch's product meets the cotangent that
// went past it.
static void cookbooks_residuals_join_both_ways(void **state)
{
    (void)state;
    const char *job = decoder_text(models[COOKBOOK], "dp: 1", 1, "");
    expect(job, "layers/1", PHASE_FORWARD, "linear add 1\nlinear gelu 2\nlinear add 1\n");
    expect(job, "layers/1", PHASE_BACKWARD, "linear gelu_grad 1\nlinear add 1\nlinear add 1\n");
}

#define SMALL(model, data)                                       \
    "name: t\nmodel: {" model "}\ndata: {" data ", batch: 24}\n" \
    "optimizer: {kind: adamw}\nschedule: {kind: constant, value: 0.1}\ntrain: {steps: 1}\n"

// relu's gradient reads what relu made: the sum before it goes nowhere.
static void a_classifiers_layer_is_one_node(void **state)
{
    (void)state;
    static const char relu[] = SMALL("program: mlp, inputs: 24, hidden: [48, 24], classes: 6",
                                     "format: npy, dtype: u8, train: {images: i, labels: l}");
    static const char gelu[] =
        SMALL("program: mlp, inputs: 24, hidden: [48, 24], classes: 6, activation: gelu",
              "format: npy, dtype: u8, train: {images: i, labels: l}");
    expect(relu, "layers/0", PHASE_FORWARD, "linear add relu 1\n");
    expect(relu, "layers/1", PHASE_FORWARD, "linear add relu 1\n");
    expect(gelu, "layers/0", PHASE_FORWARD, "linear add gelu 2\n");
}

// encoder/in. logvar: e^logvar (which the backward reads), less 1, less logvar (a term of the
// divergence) and the deviation e^(logvar/2) are all that is made of it, and all that stays. mean
// (which the sample reads) and, after that, its square plus the term. The deviation times the
// noise, which is drawn after both, plus the mean.
static void an_encoders_divergence_and_sample_are_chains(void **state)
{
    (void)state;
    static const char job[] =
        SMALL("program: vae, inputs: 24, hidden: [48], latent: 6, activation: gelu",
              "format: npy, dtype: u8, train: {images: i}");
    expect(job, "encoder (layer 0)", PHASE_FORWARD, "linear add gelu 2\n");
    expect(job, "encoder (layer 1)", PHASE_FORWARD,
           "linear add exp sub sub scale exp 3\nlinear add mul add 2\nchain mul add 1\n");
}

// ---- the same, but for rounding ----

// `more`: what else the train section says, and what follows it.
static void compile_fused(struct fixture *f, const char *model, const char *mesh, const char *more,
                          bool fuse)
{
    char train[100];
    snprintf(train, sizeof train, ", fuse: %s%s", fuse ? "true" : "false", more);
    compile_text(f, decoder_job(model, mesh, 2, "", train), 0);
}

static int fused_nodes(const struct graph *g)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].attr.chain != NULL;
    return n;
}

static const char *const meshes[] = {
    "dp: 1", "dp: 2",        "fsdp: 2, tp: 2", "cp: 2, tp: 2",
    "tp: 4", "pp: 2, tp: 2", "fsdp: 4",        "dp: 2, fsdp: 2, tp: 2"};
static const char *const remats[] = {"", ", remat: block", ", remat: full"};
enum { MESHES = sizeof meshes / sizeof *meshes, REMATS = 3 };

static void expect_the_same_step(const char *model, const char *mesh, const char *more)
{
    struct fixture on, off;
    compile_fused(&on, model, mesh, more, true);
    compile_fused(&off, model, mesh, more, false);
    const struct program *fused = on.c.program[PROGRAM_TRAIN];
    assert_true(fused_nodes(fused->graph) > 0);
    assert_int_equal(fused_nodes(off.c.program[PROGRAM_TRAIN]->graph), 0);
    expect_equal_steps(&off, &on, false, mesh);
    fixture_clear(&on);
    fixture_clear(&off);
}

// A GPU's backend has fusions of its own.
static void a_fused_program_makes_the_same_step(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS * MESHES; i++) {
        const char *model = models[i % MODELS], *mesh = meshes[i / MODELS];
        char gpu[60];
        snprintf(gpu, sizeof gpu, "%s}\nresources: {kind: cuda", remats[i / MODELS % REMATS]);
        expect_the_same_step(model, mesh, remats[i % REMATS]);
        expect_the_same_step(model, mesh, gpu);
    }
}

// FLOPs, repeated work and collectives are the plan's; fewer bytes go through memory.
static void a_plan_counts_the_same_work_and_less_traffic(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS * MESHES; i++) {
        struct fixture on, off;
        struct cost a, b;
        const char *model = models[i % MODELS], *mesh = meshes[i / MODELS];
        compile_fused(&on, model, mesh, remats[i % REMATS], true);
        compile_fused(&off, model, mesh, remats[i % REMATS], false);
        cost_count(&on.c, &on.a, &a);
        cost_count(&off.c, &off.a, &b);
        assert_true(a.flops_per_step == b.flops_per_step && a.utilisation == b.utilisation);
        assert_int_equal(a.ncollectives, b.ncollectives);
        uint64_t bytes[2] = {0};
        int64_t count[2] = {0};
        for (int k = 0; k < a.ncollectives; k++) {
            bytes[0] += a.collectives[k].bytes, bytes[1] += b.collectives[k].bytes;
            count[0] += a.collectives[k].count, count[1] += b.collectives[k].count;
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_int_equal(count[0], count[1]);
        assert_true(a.traffic < b.traffic);
        assert_string_not_equal(on.c.hash, off.c.hash);
        fixture_clear(&on);
        fixture_clear(&off);
    }
}

// ---- broken ----

static struct node *fused_node(struct graph *g, enum op op)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == op)
            return &g->nodes[i];
    fail_msg("no %s", op_name(op));
    return NULL;
}

// The chain of a node, its own to change.
static struct op_chain *chain_of(struct graph *g, struct node *n)
{
    struct op_chain *c = arena_dup(g->arena, n->attr.chain, sizeof *c);
    n->attr.chain = c;
    return c;
}

static void no_steps(struct graph *g)
{
    chain_of(g, fused_node(g, OP_CHAIN))->steps = 0;
}
static void a_step_that_reads_ahead(struct graph *g)
{
    struct op_chain *c = chain_of(g, fused_node(g, OP_LINEAR));
    c->step[0].in[0] = (int8_t)(c->inputs + 1);
}
static void a_step_that_is_a_reduction(struct graph *g)
{
    chain_of(g, fused_node(g, OP_CHAIN))->step[0].op = OP_ROW_MAX;
}
static void an_operand_too_few(struct graph *g)
{
    fused_node(g, OP_LINEAR)->nin--;
}
static void an_output_that_is_an_input(struct graph *g)
{
    chain_of(g, fused_node(g, OP_CHAIN))->out[0] = 0;
}
static void outputs_of_two_shapes(struct graph *g)
{
    struct node *n = fused_node(g, OP_LINEAR);
    while (n->nout < 2)
        n++;
    g->values[n->out[1]].shape.n--;
}
static void an_operand_with_a_loop_of_its_own(struct graph *g)
{
    struct node *n = fused_node(g, OP_LINEAR);
    n->attr.label[2][0] = (int8_t)(n->attr.labels - 1);
}
static void a_product_of_a_cut_sum(struct graph *g)
{
    struct node *n = fused_node(g, OP_LINEAR); // over embed: cut in both, the output says nothing
    const struct dim_cut cut = {.n = 1, .axis = {1}};
    g->values[n->in[0]].spec.dim[g->values[n->in[0]].shape.n - 1] = cut;
    g->values[n->in[1]].spec.dim[1] = cut;
}
static void steps_on_a_part_of_a_sum(struct graph *g)
{
    struct node *n = fused_node(g, OP_LINEAR);
    for (int k = 0; k < n->nout; k++)
        g->values[n->out[k]].spec.partial_sum = 1;
}
static void steps_that_read_a_part_of_a_sum(struct graph *g)
{
    g->values[fused_node(g, OP_CHAIN)->in[1]].spec.partial_sum = 1; // the bias
}
static void an_output_cut_otherwise(struct graph *g)
{
    struct node *n = fused_node(g, OP_LINEAR);
    g->values[n->out[0]].spec.dim[1] = (struct dim_cut){0}; // qkv, then the batch
}

static const struct breakage breakages[] = {
    BREAKAGE(no_steps, "steps"),
    BREAKAGE(a_step_that_reads_ahead, "before it is made"),
    BREAKAGE(a_step_that_is_a_reduction, "no elementwise op"),
    BREAKAGE(an_operand_too_few, ""),
    BREAKAGE(an_output_that_is_an_input, "no register that it makes"),
    BREAKAGE(outputs_of_two_shapes, ""),
    BREAKAGE(an_operand_with_a_loop_of_its_own, ""),
    BREAKAGE(a_product_of_a_cut_sum, ""),
    BREAKAGE(steps_on_a_part_of_a_sum, "part of a sum"),
    BREAKAGE(steps_that_read_a_part_of_a_sum,
             "chain reads layers/0/attn/out/bias, which is partial"),
    BREAKAGE(an_output_cut_otherwise, "cut differently"),
};

static void a_broken_fused_node_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    compile_fused(&f, models[GPT2], "dp: 2, tp: 2", "", true);
    expect_refused(&f, &f.c.mesh, breakages, sizeof breakages / sizeof *breakages);
    fixture_clear(&f);
}

// ---- rows of calls ----

// The longest row of an op's instructions that are one call, and how many of them there are.
static void expect_row(const char *job, enum op op, int count, int longest)
{
    struct fixture f;
    int n = 0, most = 0;
    compile_text(&f, job, 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        bool of = in->kind == INSTR_OP && in->op == op;
        n += of;
        most = of && in->with > most ? in->with : most;
    }
    assert_int_equal(n, count);
    assert_int_equal(most + (most > 0), longest);
    fixture_clear(&f);
}

// Two tables, 12 tensors in each of two layers, the last norm's two. On whole parameters nothing
// lies between their updates; where the optimiser is cut, the gather of what each made does.
static void all_parameters_are_updated_in_one_call(void **state)
{
    (void)state;
    expect_row(decoder_text(models[GPT2], "dp: 2", 1, ""), OP_ADAM, 2 + 2 * 12 + 2, 28);
    expect_row(decoder_text(models[GPT2], "tp: 2", 1, ""), OP_ADAM, 28, 28);
    expect_row(decoder_text(models[GPT2], "dp: 2", 1, "optimizer: [dp]"), OP_ADAM, 28, 0);
}

static void the_norm_of_all_gradients_is_one_call(void **state)
{
    (void)state;
    expect_row(decoder_text(models[GPT2], "dp: 1", 1, ""), OP_SQNORM, 28, 28);
    expect_row(decoder_text(models[GPT2], "dp: 1", 2, ""), OP_SQNORM, 28, 28);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_layer_is_four_products_with_all_between_them),
        cmocka_unit_test(a_bias_behind_an_all_reduce_stays_there),
        cmocka_unit_test(a_gated_activation_backward_is_one_node),
        cmocka_unit_test(cookbooks_residuals_join_both_ways),
        cmocka_unit_test(a_classifiers_layer_is_one_node),
        cmocka_unit_test(an_encoders_divergence_and_sample_are_chains),
        cmocka_unit_test(a_fused_program_makes_the_same_step),
        cmocka_unit_test(a_plan_counts_the_same_work_and_less_traffic),
        cmocka_unit_test(a_broken_fused_node_is_refused),
        cmocka_unit_test(all_parameters_are_updated_in_one_call),
        cmocka_unit_test(the_norm_of_all_gradients_is_one_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
