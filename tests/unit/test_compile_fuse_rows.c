// SPDX-License-Identifier: Apache-2.0
// Residual sums with their norms, and the loss's rows, as single ops: how many a model has is
// counted by hand, what the logits take follows from the bytes, and what was fused wrongly is refused.
#include "tests/unit/broken_graph.h"
#include "tests/unit/decoder_case.h"

static int count(const struct graph *g, enum op op)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].kind == NODE_OP && g->nodes[i].op == op;
    return n;
}

// ---- how many ----------------------------------------------------------------------------------

enum { GPT2, LLAMA, COOKBOOK, DROPOUT };

// Two layers. A residual is added behind the product that makes what is added (LINEAR), or behind
// its bias (CHAIN), where it can be: then the norm is left alone. So gpt2's first norm alone has
// its sum, of the tokens' and the positions' embeddings, with it; after dropout every one has.
// Where what a product makes is reduced first and there is no bias, the sum is the norm's again: of
// llama's five norms all but the first, which reads the embedding, of cookbook's all four.
//
// Behind the last norm there is no residual, so its gradient is all that leads to its input; the
// others' are added to the residual's. Cookbook's norms' gradients each go to two places.
//
// A boundary of stages lies between a sum and the next layer's norm. Parts of a vocabulary cut over
// tp are maxima, sums and picks of their own, reduced one by one; their gradient is of a part. Of a
// whole one loss and gradient are one.
static const struct {
    const char *what;
    int model;
    const char *mesh, *sharding, *train;
    int microbatches, add_norm, norm_grad_add, loss_both, loss_grad;
} counts[] = {
    {"gpt2", GPT2, "dp: 1", "", "", 1, 1, 4, 1, 0},
    {"llama", LLAMA, "dp: 1", "", "", 1, 0, 4, 1, 0},
    {"cookbook", COOKBOOK, "dp: 1", "", "", 1, 0, 0, 1, 0},
    {"dropout", DROPOUT, "dp: 1", "", "", 1, 5, 4, 1, 0},
    {"microbatches", DROPOUT, "dp: 2", "", "", 2, 5, 4, 1, 0},
    {"cut parameters", DROPOUT, "fsdp: 4", "", "", 1, 5, 4, 1, 0},
    {"a cut vocabulary", GPT2, "tp: 2", "", "", 1, 1, 4, 0, 1},
    {"a cut vocabulary", LLAMA, "dp: 2, tp: 2", "", "", 1, 4, 4, 0, 1},
    {"a cut vocabulary", COOKBOOK, "tp: 4", "", "", 1, 4, 0, 0, 1},
    {"a vocabulary left whole", LLAMA, "tp: 2", "rules: {vocab: []}", "", 1, 4, 4, 1, 0},
    // Norm and sum are both cut along the sequence; what moves is the product before and the norm
    // behind.
    {"cut sequences", LLAMA, "dp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}", "", 1, 4,
     4, 0, 1},
    {"context", DROPOUT, "cp: 2", "", "", 1, 5, 4, 1, 0},
    {"two stages", DROPOUT, "pp: 2", "", "", 2, 4, 4, 1, 0},
    // The sum within a layer and the norm behind it are made again; what enters a layer is kept,
    // its norm alone made again.
    {"made again", DROPOUT, "dp: 1", "", ", remat: block", 1, 7, 4, 1, 0},
    {"not fused", DROPOUT, "tp: 2", "", ", fuse: false", 1, 0, 0, 0, 0},
};

static const char *model_of(int model)
{
    return model < MODELS ? models[model]
                          : "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24, "
                            "dropout_residual: 0.1";
}

static void each_model_has_as_many_as_it_should(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct fixture f;
        compile_text(&f,
                     decoder_job(model_of(counts[i].model), counts[i].mesh, counts[i].microbatches,
                                 counts[i].sharding, counts[i].train),
                     0);
        const struct graph *g = f.c.program[PROGRAM_TRAIN]->graph;
        const int got[] = {count(g, OP_ADD_NORM), count(g, OP_NORM_GRAD_ADD),
                           count(g, OP_ROW_LOSS_BOTH), count(g, OP_ROW_LOSS_GRAD)};
        const int want[] = {counts[i].add_norm, counts[i].norm_grad_add, counts[i].loss_both,
                            counts[i].loss_grad};
        assert_int_equal(count(g, OP_ROW_LOSS), 0);
        if (memcmp(got, want, sizeof got) != 0)
            fail_msg("%s: %d sums with norms, not %d; %d gradients with sums, not %d; %d losses "
                     "with gradients, not %d; %d gradients alone, not %d",
                     counts[i].what, got[0], want[0], got[1], want[1], got[2], want[2], got[3],
                     want[3]);
        fixture_clear(&f);
    }
}

// On a GPU a norm's gradient is made with the sums over rows beside it. `grads`: how many have one,
// two and three of them; `alone`: gradients with a residual that have none.
//
// Of gpt2's five norms four follow a bias, the first an embedding; behind dropout
// the bias's gradient is the sum of something else, and across stages it is made on another.
// Llama's norms have a weight alone. On any mesh a device has sums of its own rows.
static const struct {
    const char *what;
    int model;
    const char *mesh, *sharding, *train;
    int microbatches, grads[3], alone;
} gpu_counts[] = {
    {"gpt2", GPT2, "dp: 1", "", "", 1, {0, 1, 4}, 0},
    {"gpt2 in bf16", GPT2, "dp: 1", "", "}\nprecision: {compute: bf16", 1, {0, 1, 4}, 0},
    {"llama", LLAMA, "dp: 1", "", "", 1, {5, 0, 0}, 0},
    {"cookbook", COOKBOOK, "dp: 1", "", "", 1, {0, 0, 0}, 0},
    {"dropout", DROPOUT, "dp: 1", "", "", 1, {0, 5, 0}, 0},
    {"microbatches", GPT2, "dp: 2", "", "", 2, {0, 1, 4}, 0},
    {"cut parameters", GPT2, "fsdp: 4", "", "", 2, {0, 1, 4}, 0},
    {"tensors", GPT2, "dp: 2, tp: 2", "", "", 1, {0, 1, 4}, 0},
    {"cut sequences",
     LLAMA,
     "dp: 2, tp: 2",
     "activations: {act_seq: [batch, [seq, tp]]}",
     "",
     1,
     {5, 0, 0},
     0},
    {"stages", GPT2, "pp: 2", "", "", 2, {0, 2, 3}, 0},
    {"made again", GPT2, "dp: 1", "", ", remat: block", 1, {0, 1, 4}, 0},
    {"not fused", GPT2, "dp: 1", "", ", fuse: false", 1, {0, 0, 0}, 0},
};

static void on_a_gpu_sums_are_made_with_the_gradient(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof gpu_counts / sizeof *gpu_counts; i++) {
        struct fixture f;
        char more[200];
        int got[3] = {0};
        snprintf(more, sizeof more, "%s}\nresources: {kind: cuda", gpu_counts[i].train);
        compile_text(&f,
                     decoder_job(model_of(gpu_counts[i].model), gpu_counts[i].mesh,
                                 gpu_counts[i].microbatches, gpu_counts[i].sharding, more),
                     0);
        const struct graph *g = f.c.program[PROGRAM_TRAIN]->graph;
        for (int n = 0; n < g->nnodes; n++)
            if (g->nodes[n].kind == NODE_OP && g->nodes[n].op == OP_NORM_GRADS)
                got[g->nodes[n].nout - 2]++;
        if (memcmp(got, gpu_counts[i].grads, sizeof got) != 0 ||
            count(g, OP_NORM_GRAD_ADD) != gpu_counts[i].alone)
            fail_msg("%s: %d with one sum, %d with two, %d with three, %d with none",
                     gpu_counts[i].what, got[0], got[1], got[2], count(g, OP_NORM_GRAD_ADD));
        fixture_clear(&f);
    }
}

// ---- what the logits take ----------------------------------------------------------------------

static const char *wide_text(const char *mesh, const char *train)
{
    static char text[600];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: gpt2, layers: 1, embed: 8, heads: 2, head_dim: 4, "
             "mlp: 8, seq: 16, vocab: 4096}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 8}\n"
             "train: {steps: 3%s}\n",
             mesh, train);
    return text;
}

// Buffers as large as the logits that hold something at the instruction where most do.
static int at_once(const struct program *p, uint64_t bytes)
{
    int most = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        int n = 0;
        for (int b = 0; b < p->nbuffers; b++)
            n +=
                p->buffers[b].bytes == bytes && p->buffers[b].first <= i && i <= p->buffers[b].last;
        most = n > most ? n : most;
    }
    return most;
}

// 8 · 16 tokens of 4096 logits: 2 MiB, many times all else that a step makes. In parts: the logits,
// the gradient through the sum, that through the picks, added to the second; fused: the logits,
// whose place the gradient takes. Cut over tp: a half of each. At that one op the cotangent of the
// picks, a number a token, is there as well, which two ops may have spent before the peak.
static void the_gradient_of_the_logits_takes_their_place(void **state)
{
    static const char *const meshes[] = {"dp: 1", "tp: 2"};
    (void)state;
    for (int m = 0; m < 2; m++) {
        const uint64_t tokens = 8 * 16, bytes = tokens * 4096 * 4 / (uint64_t)(m + 1);
        uint64_t arena[2];
        for (int fused = 0; fused < 2; fused++) {
            struct fixture f;
            compile_text(&f, wide_text(meshes[m], fused ? "" : ", fuse: false"), 0);
            assert_int_equal(at_once(f.c.program[PROGRAM_TRAIN], bytes), fused ? 1 : 3);
            arena[fused] = f.c.memory.arena;
            fixture_clear(&f);
        }
        assert_in_range(arena[0] - arena[1], 2 * bytes - tokens * 4, 2 * bytes);
    }
}

// ---- fused wrongly -----------------------------------------------------------------------------

static struct node *node_of(struct graph *g, enum op op)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == op)
            return &g->nodes[i];
    fail_msg("no %s in the graph", op_name(op));
    return NULL;
}

static void swap_labels(struct node *n, int k)
{
    int8_t first = n->attr.label[k][0];
    n->attr.label[k][0] = n->attr.label[k][1];
    n->attr.label[k][1] = first;
}

static void a_sum_of_what_is_turned(struct graph *g)
{
    swap_labels(node_of(g, OP_ADD_NORM), 1);
}
static void a_norm_that_is_turned(struct graph *g)
{
    struct node *n = node_of(g, OP_ADD_NORM);
    swap_labels(n, n->nin + 1);
}
static void a_weight_along_the_sequence(struct graph *g)
{
    struct node *n = node_of(g, OP_ADD_NORM);
    n->attr.label[2][0] = n->attr.label[0][1]; // both are 8 long
}
static void a_gradient_with_a_bias(struct graph *g)
{
    struct node *n = node_of(g, OP_NORM_GRAD_ADD);
    n->nin = 5;
    n->in[4] = n->in[3];
    memcpy(n->attr.label[5], n->attr.label[4], sizeof n->attr.label[5]);
    memcpy(n->attr.label[4], n->attr.label[3], sizeof n->attr.label[4]);
}
static void a_norm_over_parts_of_rows(struct graph *g)
{
    const struct node *n = node_of(g, OP_NORM_GRAD_ADD);
    for (int k = 0; k < n->nin + n->nout; k++) {
        struct value *v = &g->values[k < n->nin ? n->in[k] : n->out[k - n->nin]];
        dim_append(&v->spec.dim[v->shape.n - 1], 0);
    }
}
static void a_sum_of_parts(struct graph *g)
{
    const struct node *n = node_of(g, OP_ADD_NORM);
    g->values[n->in[0]].spec.partial_sum = g->values[n->in[1]].spec.partial_sum =
        g->values[n->out[0]].spec.partial_sum = 1;
}
static void a_loss_of_a_part_of_the_vocabulary(struct graph *g)
{
    const struct node *n = node_of(g, OP_ROW_LOSS_BOTH);
    dim_append(&g->values[n->in[0]].spec.dim[2], 0);
}
static void a_loss_without_a_pick(struct graph *g)
{
    node_of(g, OP_ROW_LOSS_BOTH)->nout = 2;
}
static void ids_for_a_maximum(struct graph *g)
{
    g->values[node_of(g, OP_ROW_LOSS_BOTH)->out[0]].dtype = DT_I32;
}
static void a_maximum_for_ids(struct graph *g)
{
    g->values[node_of(g, OP_ROW_LOSS_BOTH)->in[1]].dtype = DT_F32;
}
static void a_cotangent_for_each_sample(struct graph *g)
{
    struct node *n = node_of(g, OP_ROW_LOSS_BOTH);
    n->in[2] = 0;
    while (g->values[n->in[2]].kind != VALUE_PARAM || g->values[n->in[2]].shape.n != 1)
        n->in[2]++; // a norm's weight: 8 numbers, as there are samples
}
static void rows_of_another_order(struct graph *g)
{
    swap_labels(node_of(g, OP_ROW_LOSS_BOTH), 1);
}

// Batch, sequence and width are all 8, so that nothing but its meaning is wrong with a swap.
static const struct breakage breakages[] = {
    BREAKAGE(a_sum_of_what_is_turned, "has not the loops"),
    BREAKAGE(a_norm_that_is_turned, "has not the loops"),
    BREAKAGE(a_weight_along_the_sequence, "has not the loops"),
    BREAKAGE(a_gradient_with_a_bias, "5 inputs"),
    BREAKAGE(a_norm_over_parts_of_rows, "are cut"),
    BREAKAGE(a_sum_of_parts, "part"),
    BREAKAGE(a_loss_of_a_part_of_the_vocabulary, "are cut"),
    BREAKAGE(a_loss_without_a_pick, "2 outputs"),
    BREAKAGE(ids_for_a_maximum, "is i32, which the op does not take there"),
    BREAKAGE(a_maximum_for_ids, "is f32, which the op does not take there"),
    BREAKAGE(a_cotangent_for_each_sample, "has not the loops"),
    BREAKAGE(rows_of_another_order, "has not the loops"),
};

static void what_was_fused_wrongly_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(
        &f,
        decoder_text("program: gpt2, embed: 8, heads: 4, head_dim: 2, mlp: 24, dropout: 0.1",
                     "dp: 1", 1, ""),
        0);
    const struct mesh two = {.n = 1, .axis = {{"dp", 2}}};
    expect_refused(&f, &two, breakages, sizeof breakages / sizeof *breakages);
    fixture_clear(&f);
}

static void a_gradient_without_a_weight(struct graph *g)
{
    struct node *n = node_of(g, OP_NORM_GRADS);
    n->nin = 2;
    memmove(n->attr.label[2], n->attr.label[4], sizeof n->attr.label[2] * (size_t)n->nout);
}
static void a_gradient_without_sums(struct graph *g)
{
    node_of(g, OP_NORM_GRADS)->nout = 1;
}
static void a_sum_along_the_sequence(struct graph *g)
{
    struct node *n = node_of(g, OP_NORM_GRADS);
    n->attr.label[n->nin + 2][0] = n->attr.label[0][1];
}
static void a_rounded_sum(struct graph *g)
{
    g->values[node_of(g, OP_NORM_GRADS)->out[1]].dtype = DT_BF16;
}
static void a_sum_of_a_part_of_the_rows(struct graph *g)
{
    g->values[node_of(g, OP_NORM_GRADS)->out[2]].spec.partial_sum = 0;
}
static void a_gradient_that_is_a_part(struct graph *g)
{
    g->values[node_of(g, OP_NORM_GRADS)->out[0]].spec.partial_sum = 1;
}

static const struct breakage gpu_breakages[] = {
    BREAKAGE(a_gradient_without_a_weight, "2 inputs"),
    BREAKAGE(a_gradient_without_sums, "1 outputs"),
    BREAKAGE(a_sum_along_the_sequence, "has not the loops"),
    BREAKAGE(a_rounded_sum, "is bf16, which the op does not take there"),
    BREAKAGE(a_sum_of_a_part_of_the_rows, "does not say so"),
    BREAKAGE(a_gradient_that_is_a_part, "it was fused and makes a part of a sum"),
};

static void sums_fused_wrongly_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f,
                 decoder_job("program: gpt2, embed: 8, heads: 4, head_dim: 2, mlp: 24", "dp: 2", 1,
                             "", "}\nresources: {kind: cuda"),
                 0);
    expect_refused(&f, &f.c.mesh, gpu_breakages, sizeof gpu_breakages / sizeof *gpu_breakages);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_model_has_as_many_as_it_should),
        cmocka_unit_test(on_a_gpu_sums_are_made_with_the_gradient),
        cmocka_unit_test(the_gradient_of_the_logits_takes_their_place),
        cmocka_unit_test(what_was_fused_wrongly_is_refused),
        cmocka_unit_test(sums_fused_wrongly_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
