// SPDX-License-Identifier: Apache-2.0
// The gradients of a weight and of its bias as one op of a GPU: which of a model's there are, counted
// by hand from its text, how many on each mesh, and what was fused wrongly is refused. That the step
// stays the same is test_compile_fuse.c's.
#include "tests/unit/broken_graph.h"
#include "tests/unit/decoder_case.h"

#define ON_A_GPU "}\nresources: {kind: cuda"
#define GPT2     "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 48"

static int count(const struct graph *g, enum op op)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].kind == NODE_OP && g->nodes[i].op == op;
    return n;
}

// ---- which -------------------------------------------------------------------------------------

// A line for each op of a scope's backward that sums or multiplies and no more: its name and the
// extents of what it makes.
static void print_sums(const struct graph *g, const char *scope, struct buf *to)
{
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool sums = n->op == OP_MATMUL || n->op == OP_MATMUL_SUM || n->op == OP_SUM ||
                    n->op == OP_NORM_GRADS;
        if (n->kind != NODE_OP || n->phase != PHASE_BACKWARD || !sums ||
            strcmp(g->scopes[n->scope], scope) != 0)
            continue;
        buf_puts(to, op_name(n->op));
        for (int k = 0; k < n->nout; k++)
            for (int d = 0; d < g->values[n->out[k]].shape.n; d++)
                buf_printf(to, "%c%lld", d ? 'x' : ' ',
                           (long long)g->values[n->out[k]].shape.dim[d]);
        buf_puts(to, "\n");
    }
}

static void expect(const char *job, const char *scope, const char *want)
{
    struct fixture f;
    struct buf got = {0};
    compile_text(&f, job, 0);
    print_sums(f.c.program[PROGRAM_TRAIN]->graph, scope, &got);
    if (strcmp(buf_str(&got), want) != 0)
        fail_msg("%s:\n%swhere these are wanted:\n%s", scope, buf_str(&got), want);
    buf_clear(&got);
    fixture_clear(&f);
}

// From the end of a layer to its begin, of 8 samples of 8 tokens: mlp/out, whose input's gradient
// passes through gelu; mlp/in and its input's gradient; that of norm2 with norm2's own and attn/out's
// bias; attn/out; q, k and v; norm1, with it the bias before the layer, if that is another layer's.
// The last layer's own bias comes with the gradient of the norm behind it.
static void a_bias_that_no_norm_sums_comes_with_its_weight(void **state)
{
    (void)state;
    const char *job = decoder_job(GPT2, "dp: 1", 1, "", ON_A_GPU);
    expect(job, "layers/1",
           "matmul 48x24\n"
           "matmul_sum 24x48 48\nmatmul 8x8x24\n"
           "norm_grads 8x8x24 24 24 24\n"
           "matmul 4x6x24\nmatmul 8x8x4x6\n"
           "matmul_sum 3x24x4x6 3x4x6\nmatmul 8x8x24\n"
           "norm_grads 8x8x24 24 24 24\n");
    expect(job, "layers/0",
           "matmul 48x24\n"
           "matmul_sum 24x48 48\nmatmul 8x8x24\n"
           "norm_grads 8x8x24 24 24 24\n"
           "matmul 4x6x24\nmatmul 8x8x4x6\n"
           "matmul_sum 3x24x4x6 3x4x6\nmatmul 8x8x24\n"
           "norm_grads 8x8x24 24 24\n");
}

// Nothing wants the images' gradient; those of the other layers' inputs are products alone, because
// the relu that they pass through is the layer's before.
static void every_layer_of_a_classifier_has_one(void **state)
{
    (void)state;
    static const char job[] =
        "name: t\nmodel: {program: mlp, inputs: 24, hidden: [48, 16], classes: 6}\n"
        "data: {format: npy, dtype: u8, train: {images: i, labels: l}, batch: 24}\n"
        "optimizer: {kind: adamw}\nschedule: {kind: constant, value: 0.1}\ntrain: {steps: 1}\n"
        "resources: {kind: cuda}\n";
    expect(job, "layers/2", "matmul_sum 16x6 6\nmatmul 24x16\n");
    expect(job, "layers/1", "matmul_sum 48x16 16\nmatmul 24x48\n");
    expect(job, "layers/0", "matmul_sum 24x48 48\n");
}

// Of gpt2's two layers: q, k and v, and mlp/in, of each. What leads to a bias from
// dropout no norm sums, so all eight have theirs; across stages the norm that would is another's.
// Where a layer is made again this comes between the last bias, which needs none of it, and its
// weight, which reads what gelu made.
static const struct {
    const char *what, *model, *mesh, *train;
    int microbatches, sums;
} counts[] = {
    {"gpt2", GPT2, "dp: 1", "", 1, 4},
    {"gpt2 in bf16", GPT2, "dp: 1", "}\nprecision: {compute: bf16", 1, 4},
    {"dropout", GPT2 ", dropout_residual: 0.1", "dp: 1", "", 1, 8},
    {"microbatches", GPT2, "dp: 2", "", 2, 4},
    {"tensors", GPT2, "dp: 2, tp: 2", "", 1, 4},
    {"stages", GPT2, "pp: 2", "", 2, 5},
    {"made again", GPT2, "dp: 1", ", remat: block", 1, 4},
    {"no biases", "program: llama, embed: 24, heads: 4, kv_heads: 4, head_dim: 6, mlp: 24", "dp: 1",
     "", 1, 0},
    {"not fused", GPT2, "dp: 1", ", fuse: false", 1, 0},
};

static int count_sums(const char *job)
{
    struct fixture f;
    compile_text(&f, job, 0);
    int n = count(f.c.program[PROGRAM_TRAIN]->graph, OP_MATMUL_SUM);
    fixture_clear(&f);
    return n;
}

static void on_a_gpu_each_mesh_has_as_many_as_it_should(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char more[200];
        snprintf(more, sizeof more, "%s" ON_A_GPU, counts[i].train);
        int n = count_sums(
            decoder_job(counts[i].model, counts[i].mesh, counts[i].microbatches, "", more));
        if (n != counts[i].sums)
            fail_msg("%s: %d, not %d", counts[i].what, n, counts[i].sums);
    }
    assert_int_equal(count_sums(decoder_job(GPT2, "dp: 1", 1, "", "")), 0); // a CPU has none
}

// ---- fused wrongly -----------------------------------------------------------------------------

static struct node *find_sum(struct graph *g)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_MATMUL_SUM)
            return &g->nodes[i];
    fail_msg("no matmul_sum in the graph");
    return NULL;
}

static void a_product_alone(struct graph *g)
{
    find_sum(g)->nout = 1;
}
static void a_sum_that_keeps_the_batch(struct graph *g)
{
    struct node *n = find_sum(g);
    n->attr.label[3][0] = n->attr.label[0][0]; // 8 long, as the width is
}
static void a_sum_with_a_loop_more(struct graph *g)
{
    struct node *n = find_sum(g);
    n->attr.label[3][1] = n->attr.label[2][0];
    g->values[n->out[1]].shape = (struct shape){2, {8, 8}};
}
static void a_rounded_sum(struct graph *g)
{
    g->values[find_sum(g)->out[1]].dtype = DT_BF16;
}
static void a_rounded_product(struct graph *g)
{
    g->values[find_sum(g)->out[0]].dtype = DT_BF16; // as what it reads
}
static void a_sum_of_a_part_of_the_rows(struct graph *g)
{
    g->values[find_sum(g)->out[1]].spec.partial_sum = 0;
}

static void what_was_fused_wrongly_is_refused(void **state)
{
    static const struct breakage breakages[] = {
        BREAKAGE(a_product_alone, "1 outputs"),
        BREAKAGE(a_sum_that_keeps_the_batch, "has not the loops"),
        BREAKAGE(a_sum_with_a_loop_more, "has not the loops"),
        BREAKAGE(a_rounded_sum, "is bf16, which the op does not take there"),
        BREAKAGE(a_rounded_product, "is bf16, which the op does not take there"),
        BREAKAGE(a_sum_of_a_part_of_the_rows, "does not say so"),
    };
    struct fixture f;
    (void)state;
    compile_text(&f,
                 decoder_job("program: gpt2, embed: 8, heads: 4, head_dim: 2, mlp: 8", "dp: 2", 1,
                             "", "}\nprecision: {compute: bf16" ON_A_GPU),
                 0);
    expect_refused(&f, &f.c.mesh, breakages, sizeof breakages / sizeof *breakages);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bias_that_no_norm_sums_comes_with_its_weight),
        cmocka_unit_test(every_layer_of_a_classifier_has_one),
        cmocka_unit_test(on_a_gpu_each_mesh_has_as_many_as_it_should),
        cmocka_unit_test(what_was_fused_wrongly_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
