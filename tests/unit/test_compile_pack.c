// SPDX-License-Identifier: Apache-2.0
// Packed heads: a program with them makes the step that it makes without, in double precision, on
// every mesh; forward and back are one product each; and what does not fit stays as it is.
#include "common/compile/program/verify.h"
#include "common/op/gemm.h"
#include "tests/unit/decoder_case.h"

static const char heads_alike[] =
    "program: llama, embed: 24, heads: 4, kv_heads: 4, head_dim: 6, mlp: 24, theta: 50";

static int count_ops(const struct fixture *f, enum op op)
{
    const struct graph *g = f->c.program[PROGRAM_TRAIN]->graph;
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].kind == NODE_OP && g->nodes[i].op == op;
    return n;
}

// On a GPU, in bf16. `more`: what else the train section says.
static void compile_for_gpu(struct fixture *f, const char *model, const char *mesh,
                            const char *more, bool fuse)
{
    char train[200];
    snprintf(train, sizeof train,
             ", fuse: %s%s}\nprecision: {compute: bf16}\nresources: {kind: cuda",
             fuse ? "true" : "false", more);
    compile_text(f, decoder_job(model, mesh, 2, "", train), 0);
}

// The pieces are taken apart nowhere: in any other place they would be copied.
static void assert_packed(const struct fixture *f, bool turns)
{
    assert_true(count_ops(f, OP_ATTENTION_PACKED) > 0);
    assert_true(count_ops(f, OP_ATTENTION_PACKED_GRAD) > 0);
    assert_int_equal(count_ops(f, OP_ROTARY_PACKED) > 0, turns);
    assert_int_equal(count_ops(f, OP_ATTENTION) + count_ops(f, OP_ATTENTION_GRAD), 0);
    assert_int_equal(count_ops(f, OP_SPLIT) + count_ops(f, OP_STACK), 0);
}

static void expect_the_same_step(const char *model, const char *mesh, const char *more)
{
    struct fixture on, off;
    compile_for_gpu(&on, model, mesh, more, true);
    compile_for_gpu(&off, model, mesh, more, false);
    assert_packed(&on, strstr(model, "llama"));
    expect_equal_steps(&off, &on, true, mesh);
    fixture_clear(&on);
    fixture_clear(&off);
}

static void a_packed_program_makes_the_same_step(void **state)
{
    static const char *const meshes[] = {"dp: 1",        "dp: 2",   "fsdp: 2, tp: 2",       "tp: 4",
                                         "pp: 2, tp: 2", "fsdp: 4", "dp: 2, fsdp: 2, tp: 2"};
    static const char *const remats[] = {"", ", remat: block", ", remat: full"};
    const char *const made[] = {models[0], models[1], heads_alike};
    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int m = 0; m < 3; m++)
            for (int r = 0; r < 3; r++)
                expect_the_same_step(made[m], meshes[i], remats[r]);
}

// The products of a weight, each as the library gets it: one, n times as wide or as deep.
static void forward_and_back_are_one_product_each(void **state)
{
    struct fixture f;
    int products = 0;
    (void)state;
    compile_for_gpu(&f, models[0], "dp: 1", "", true);
    const struct graph *g = f.c.program[PROGRAM_TRAIN]->graph;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool linear = n->kind == NODE_OP && n->op == OP_LINEAR;
        if (n->kind != NODE_OP || (!linear && n->op != OP_MATMUL) ||
            g->values[n->in[1]].shape.n != 4)
            continue;
        struct op_attr attr = n->attr;
        struct gemm gemm;
        memcpy(attr.label[2], n->attr.label[n->nin], sizeof attr.label[2]);
        assert_true(gemm_from_labels(&attr, &g->values[n->in[0]].shape, &g->values[n->in[1]].shape,
                                     &g->values[n->out[0]].shape, &gemm));
        assert_int_equal(gemm.batch, 1);
        assert_int_equal(linear ? gemm.n : gemm.k, 3 * 24);
        products++;
    }
    assert_int_equal(products, 2 * 2); // layers
    fixture_clear(&f);
}

// Three batches, whose columns lie side by side in what the gradient's product reads.
static void a_gradients_batches_lie_side_by_side(void **state)
{
    struct gemm g;
    struct op_attr attr = {.label = {{0, 1, 2}, {0, 1, 3, 4, 5}, {3, 2, 4, 5}}};
    const struct shape x = {3, {2, 5, 8}}, dy = {5, {2, 5, 3, 4, 6}}, dw = {4, {3, 8, 4, 6}};
    (void)state;
    assert_true(gemm_from_labels(&attr, &x, &dy, &dw, &g));
    assert_true(g.batch == 3 && g.m == 8 && g.n == 24 && g.k == 10);
    assert_true(g.trans_a && g.lda == 8 && g.stride_a == 0);
    assert_true(!g.trans_b && g.ldb == 72 && g.stride_b == 24);
    assert_true(g.ldc == 24 && g.stride_c == 192);
    // Within the columns there is no stride for it.
    const struct op_attr within = {.label = {{0, 1, 2}, {0, 1, 4, 3, 5}, {3, 2, 4, 5}}};
    const struct shape mixed = {5, {2, 5, 4, 3, 6}};
    assert_false(gemm_from_labels(&within, &x, &mixed, &dw, &g));
}

// Keys that are normed, weights that dropout takes from, keys gathered over a cut sequence, f32, and
// the CPU: nothing is packed.
static void what_does_not_fit_stays_as_it_is(void **state)
{
    static const struct {
        const char *model, *mesh, *rest;
    } jobs[] = {
        {"program: qwen3, embed: 24, heads: 4, kv_heads: 4, head_dim: 6, mlp: 24", "dp: 1",
         "}\nprecision: {compute: bf16}\nresources: {kind: cuda"},
        {"program: gpt2, embed: 24, heads: 4, mlp: 24, dropout_attention: 0.1", "dp: 1",
         "}\nprecision: {compute: bf16}\nresources: {kind: cuda"},
        {"program: gpt2, embed: 24, heads: 4, mlp: 24", "cp: 2",
         "}\nprecision: {compute: bf16}\nresources: {kind: cuda"},
        {"program: gpt2, embed: 24, heads: 4, mlp: 24", "dp: 1", "}\nresources: {kind: cuda"},
        {"program: gpt2, embed: 24, heads: 4, mlp: 24", "dp: 1", "}\nprecision: {compute: bf16"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct fixture f;
        compile_text(&f, decoder_job(jobs[i].model, jobs[i].mesh, 2, "", jobs[i].rest), 0);
        assert_int_equal(count_ops(&f, OP_ATTENTION), 2);
        assert_int_equal(count_ops(&f, OP_ATTENTION_PACKED), 0);
        assert_int_equal(count_ops(&f, OP_ATTENTION_PACKED_GRAD), 0);
        fixture_clear(&f);
    }
}

// To compare the two; fusion stays on.
static void a_job_may_leave_heads_apart(void **state)
{
    struct fixture packed, apart;
    (void)state;
    compile_for_gpu(&packed, models[0], "dp: 1", ", pack_heads: true", true);
    compile_for_gpu(&apart, models[0], "dp: 1", ", pack_heads: false", true);
    assert_packed(&packed, false);
    assert_int_equal(count_ops(&apart, OP_ATTENTION), 2); // layers
    assert_int_equal(count_ops(&apart, OP_ATTENTION_GRAD), 2);
    assert_int_equal(count_ops(&apart, OP_ATTENTION_PACKED), 0);
    assert_int_equal(count_ops(&apart, OP_ATTENTION_PACKED_GRAD), 0);
    assert_int_equal(count_ops(&apart, OP_LINEAR), count_ops(&packed, OP_LINEAR));
    assert_true(count_ops(&apart, OP_LINEAR) > 0);
    fixture_clear(&packed);
    fixture_clear(&apart);
}

// A copy whose dimensions are turned is none that the update could write as it goes.
static void a_turned_copy_is_cast_in_each_step(void **state)
{
    struct fixture f;
    (void)state;
    compile_for_gpu(&f, models[0], "dp: 1", "", true);
    const struct graph *g = f.c.program[PROGRAM_TRAIN]->graph;
    int casts = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!node_casts_param(n))
            continue;
        casts++;
        assert_int_equal(g->values[n->in[0]].shape.dim[0], 3);
        assert_int_equal(g->values[n->out[0]].shape.dim[1], 3);
    }
    assert_int_equal(casts, 2); // layers
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_program_makes_the_same_step),
        cmocka_unit_test(forward_and_back_are_one_product_each),
        cmocka_unit_test(a_gradients_batches_lie_side_by_side),
        cmocka_unit_test(what_does_not_fit_stays_as_it_is),
        cmocka_unit_test(a_job_may_leave_heads_apart),
        cmocka_unit_test(a_turned_copy_is_cast_in_each_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
