// SPDX-License-Identifier: Apache-2.0
// The verifier, held against graphs and programs that are broken on purpose, one way each: every
// one is refused, for the reason that it has, and unbroken again all is well.
#include "common/compile/program/verify.h"
#include "tests/unit/compile_case.h"

// A small decoder: cut parameters, partial products, moves of every kind but exchanges.
static const char JOB[] =
    "name: t\n"
    "model: {program: gpt2, layers: 2, embed: 8, heads: 2, head_dim: 4, mlp: 16,\n"
    "        seq: 4, vocab: 12, vocab_multiple: 4}\n"
    "mesh: {dp: 2, fsdp: 2, tp: 2}\n"
    "data: {format: tokens, train: {tokens: x.bin}, batch: 16}\n"
    "train: {steps: 1, microbatches: 2, fuse: false}\n"
    "optimizer: {kind: adamw}\n"
    "schedule: {kind: constant, value: 0.1}\n";

static int node_with(const struct graph *g, enum op op, int nth)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == op && nth-- == 0)
            return i;
    fail_msg("no %s in the graph", op_name(op));
    return -1;
}

static int move_of(const struct graph *g, enum reshard_kind kind)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_RESHARD && g->nodes[i].step.kind == kind)
            return i;
    fail_msg("no %s in the graph", reshard_kind_name(kind));
    return -1;
}

static struct value *output(struct graph *g, int node)
{
    return &g->values[g->nodes[node].out[0]];
}

static struct node *moving(struct graph *g, enum reshard_kind kind)
{
    return &g->nodes[move_of(g, kind)];
}

// ---- broken graphs: each may change anything of the copy ----

static void reads_what_comes_later(struct graph *g)
{
    g->nodes[2].in[0] = g->nodes[g->nnodes - 1].out[0];
}
static void reads_a_value_that_is_none(struct graph *g)
{
    g->nodes[2].in[0] = g->nvalues;
}
static void two_nodes_make_one_value(struct graph *g)
{
    g->nodes[9].out[0] = g->nodes[8].out[0];
}
static void nobody_makes_what_is_read(struct graph *g)
{
    output(g, 3)->producer = -1;
}
static void goes_back_to_the_forward(struct graph *g)
{
    g->nodes[g->nnodes - 1].phase = PHASE_FORWARD;
}
static void has_no_scope(struct graph *g)
{
    g->nodes[4].scope = g->nscopes;
}
static void a_label_of_two_sizes(struct graph *g)
{
    struct node *n = &g->nodes[node_with(g, OP_MATMUL, 0)];
    g->values[n->in[1]].shape.dim[0] += 1;
}
static void a_label_beyond_the_last(struct graph *g)
{
    g->nodes[node_with(g, OP_MATMUL, 0)].attr.label[0][0] = 99;
}
static void a_product_in_whole_numbers(struct graph *g)
{
    output(g, node_with(g, OP_MATMUL, 0))->dtype = DT_I32;
}
static void a_contribution_of_another_shape(struct graph *g)
{
    g->values[g->sums[1].contrib[0]].shape.n = 0;
}
static void no_loss(struct graph *g)
{
    g->loss = -1;
}
static void a_cut_that_does_not_divide(struct graph *g)
{
    struct value *v = output(g, node_with(g, OP_GELU, 0));
    v->shape.dim[v->shape.n - 1] += 1;
    g->values[g->nodes[node_with(g, OP_GELU, 0)].in[0]].shape.dim[v->shape.n - 1] += 1;
}
static void a_gather_that_gathers_nothing(struct graph *g)
{
    moving(g, RESHARD_ALL_GATHER)->step.cut.n = 0;
}
static void a_gather_of_another_dimension(struct graph *g)
{
    struct node *n = moving(g, RESHARD_ALL_GATHER);
    n->step.dim = n->step.dim ? 0 : 1;
}
static void an_all_reduce_over_too_few(struct graph *g)
{
    struct node *n = moving(g, RESHARD_ALL_REDUCE);
    n->step.cut.n--;
}
static void a_scatter_that_only_slices(struct graph *g)
{
    moving(g, RESHARD_REDUCE_SCATTER)->step.kind = RESHARD_SLICE;
}
static void a_product_that_hides_its_parts(struct graph *g)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_MATMUL &&
            output(g, i)->spec.partial_sum) {
            output(g, i)->spec.partial_sum = 0;
            return;
        }
    fail_msg("no product is partial");
}
static void an_embedding_that_hides_its_parts(struct graph *g)
{
    output(g, node_with(g, OP_EMBED, 0))->spec.partial_sum = 0;
}
static void a_norm_of_parts_of_a_sum(struct graph *g)
{
    g->values[g->nodes[node_with(g, OP_NORM, 0)].in[0]].spec.partial_sum = 1;
}
static void a_bias_added_to_every_part(struct graph *g)
{
    struct node *n = &g->nodes[node_with(g, OP_ADD, 1)];
    g->values[n->in[0]].spec.partial_sum = 4;
    output(g, (int)(n - g->nodes))->spec.partial_sum = 4;
}
static void operands_cut_differently(struct graph *g)
{
    struct value *v = output(g, node_with(g, OP_GELU, 0));
    v->spec.dim[v->shape.n - 1] = (struct dim_cut){0};
}
static void an_order_of_axes_of_its_own(struct graph *g)
{
    // [dp, fsdp] on the batch: the gelu's output as [fsdp, dp].
    struct value *v = output(g, node_with(g, OP_GELU, 0));
    assert_int_equal(v->spec.dim[0].n, 2);
    uint8_t first = v->spec.dim[0].axis[0];
    v->spec.dim[0].axis[0] = v->spec.dim[0].axis[1];
    v->spec.dim[0].axis[1] = first;
}
static void a_maximum_taken_for_a_whole(struct graph *g)
{
    output(g, node_with(g, OP_ROW_MAX, 0))->spec.partial_max = 0;
}

static const struct ill {
    const char *name, *said; // said: what the refusal must speak of
    void (*make)(struct graph *g);
} ills[] = {
#define ILL(fn, said) \
    {                 \
#fn, said, fn \
    }
    ILL(reads_what_comes_later, "before it is made"),
    ILL(reads_a_value_that_is_none, "reads value"),
    ILL(two_nodes_make_one_value, "another producer"),
    ILL(nobody_makes_what_is_read, ""),
    ILL(goes_back_to_the_forward, "goes back"),
    ILL(has_no_scope, "no scope"),
    ILL(a_label_of_two_sizes, "label"),
    ILL(a_label_beyond_the_last, "has label 99"),
    ILL(a_product_in_whole_numbers, "matmul"),
    ILL(a_contribution_of_another_shape, "another shape"),
    ILL(no_loss, "no loss"),
    ILL(a_cut_that_does_not_divide, ""),
    ILL(a_gather_that_gathers_nothing, "does not move"),
    ILL(a_gather_of_another_dimension, "does not move"),
    ILL(an_all_reduce_over_too_few, "does not move"),
    ILL(a_scatter_that_only_slices, "does not move"),
    ILL(a_product_that_hides_its_parts, ""),
    ILL(an_embedding_that_hides_its_parts, ""),
    ILL(a_norm_of_parts_of_a_sum, "partial"),
    ILL(a_bias_added_to_every_part, "partial"),
    ILL(operands_cut_differently, "cut differently"),
    ILL(an_order_of_axes_of_its_own, ""),
    ILL(a_maximum_taken_for_a_whole, ""),
};

// A copy that may be changed down to nodes, values and the sums' first contributions.
static struct graph copy_graph(struct arena *a, const struct graph *from)
{
    struct graph g = *from;
    g.nodes = arena_dup(a, g.nodes, sizeof *g.nodes * (size_t)g.nnodes);
    g.values = arena_dup(a, g.values, sizeof *g.values * (size_t)g.nvalues);
    return g;
}

static void a_broken_graph_is_refused_for_the_reason_that_it_has(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB, 0);
    const struct graph *sound = f.c.program[PROGRAM_TRAIN]->graph;
    for (size_t i = 0; i < sizeof ills / sizeof *ills; i++) {
        struct err e = {0};
        struct graph g = copy_graph(&f.a, sound);
        assert_int_equal(verify_partitioned(&g, &f.c.mesh, &e), 0);
        ills[i].make(&g);
        if (verify_partitioned(&g, &f.c.mesh, &e) != ERR_INTERNAL || !strstr(e.text, ills[i].said))
            fail_msg("%s: it is said: %s", ills[i].name, e.code ? e.text : "nothing");
    }
    fixture_clear(&f);
}

// ---- broken programs ----

static int instr_of(const struct program *p, enum instr_kind kind, int nth)
{
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such instruction");
    return -1;
}

static void forget(struct program *p, int at)
{
    p->instrs[at] = (struct instr){.kind = INSTR_MARK, .node = -1, .workspace = -1};
}

// Of one that was started alone: those of a group are waited for in their order.
static void a_wait_is_forgotten(struct program *p)
{
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_WAIT || p->instrs[in->start].with || program_goes_with(p, in))
            continue;
        forget(p, i);
        return;
    }
}
static void a_wait_of_a_group_is_forgotten(struct program *p)
{
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_WAIT && p->instrs[p->instrs[i].start].with) {
            forget(p, i);
            return;
        }
}
// The first START with others; `two`: with two or more.
static struct instr *group_of_program(struct program *p, bool two)
{
    int i = 0;
    while (p->instrs[i].kind != INSTR_START || p->instrs[i].with <= two ||
           p->instrs[i].collective == RESHARD_ALL_REDUCE)
        i++;
    return &p->instrs[i];
}
static void a_group_of_two_kinds(struct program *p)
{
    group_of_program(p, false)[1].collective = RESHARD_ALL_TO_ALL;
}
static void a_group_of_two_communicators(struct program *p)
{
    group_of_program(p, false)[1].group = (struct dim_cut){0};
}
static void a_group_with_a_sum_of_stages(struct program *p)
{
    group_of_program(p, false)[1].stages = 3;
}
static void a_group_within_a_group(struct program *p)
{
    group_of_program(p, true)[1].with = 1;
}
static void a_group_with_what_is_no_start(struct program *p)
{
    struct instr *first = group_of_program(p, false);
    first->with = (int)(&p->instrs[p->ninstrs - 1] - first);
}
static void two_of_a_group_in_one_buffer(struct program *p)
{
    struct instr *first = group_of_program(p, false);
    first[1].in = first[1].out = first[0].out;
}
static void the_last_wait_is_forgotten(struct program *p)
{
    for (int i = p->ninstrs; i-- > 0;)
        if (p->instrs[i].kind == INSTR_WAIT) {
            forget(p, i);
            return;
        }
}
static void a_start_is_forgotten(struct program *p)
{
    forget(p, instr_of(p, INSTR_START, 0));
}
static void a_wait_for_another_start(struct program *p)
{
    p->instrs[instr_of(p, INSTR_WAIT, 1)].start = p->instrs[instr_of(p, INSTR_WAIT, 0)].start;
}
static void an_op_is_forgotten(struct program *p)
{
    forget(p, instr_of(p, INSTR_OP, 0));
}
static void adds_to_what_is_not_there(struct program *p)
{
    p->instrs[instr_of(p, INSTR_OP, 0)].accumulate = true;
}
static void two_parameters_in_one_place(struct program *p)
{
    struct buffer *a = &p->buffers[program_find(p, "layers/0/mlp/in/weight")];
    struct buffer *b = &p->buffers[program_find(p, "layers/1/mlp/in/weight")];
    assert_int_equal(a->region, b->region);
    a->offset = b->offset;
}
static void beyond_the_arena(struct program *p)
{
    p->buffers[program_find(p, "layers/0/mlp/in/weight")].offset = 1u << 30;
}
static void off_the_grid(struct program *p)
{
    p->buffers[program_find(p, "layers/0/mlp/in/weight")].offset += 4;
}

static void two_ops_in_one_call(struct program *p)
{
    p->instrs[instr_of(p, INSTR_OP, 0)].with = 1;
}
static void a_call_beyond_the_end(struct program *p)
{
    p->instrs[p->ninstrs - 1].with = 1;
}

static const struct program_ill {
    const char *name, *said;
    void (*make)(struct program *p);
} program_ills[] = {
    ILL(a_wait_is_forgotten, "touches a buffer"),
    ILL(a_wait_of_a_group_is_forgotten, "out of order"),
    ILL(the_last_wait_is_forgotten, "touches a buffer"),
    ILL(a_group_of_two_kinds, "cannot go with"),
    ILL(a_group_of_two_communicators, "cannot go with"),
    ILL(a_group_with_a_sum_of_stages, "cannot go with"),
    ILL(a_group_within_a_group, "cannot go with"),
    ILL(a_group_with_what_is_no_start, "cannot go with"),
    ILL(two_of_a_group_in_one_buffer, "touches a buffer"),
    ILL(a_start_is_forgotten, "out of order"),
    ILL(a_wait_for_another_start, "out of order"),
    ILL(an_op_is_forgotten, "nobody wrote"),
    ILL(adds_to_what_is_not_there, "adds to a buffer nobody wrote"),
    ILL(two_parameters_in_one_place, "overlap"),
    ILL(beyond_the_arena, "outside"),
    ILL(off_the_grid, "outside"),
    ILL(two_ops_in_one_call, "cannot go with"),
    ILL(a_call_beyond_the_end, "goes with"),
};

static void a_broken_program_is_refused_for_the_reason_that_it_has(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB, 0);
    const struct program *sound = f.c.program[PROGRAM_TRAIN];
    for (size_t i = 0; i < sizeof program_ills / sizeof *program_ills; i++) {
        struct err e = {0};
        struct program p = *sound;
        p.instrs = arena_dup(&f.a, p.instrs, sizeof *p.instrs * (size_t)p.ninstrs);
        p.buffers = arena_dup(&f.a, p.buffers, sizeof *p.buffers * (size_t)p.nbuffers);
        assert_int_equal(verify_program(&p, &f.c.memory, &e), 0);
        program_ills[i].make(&p);
        if (verify_program(&p, &f.c.memory, &e) != ERR_INTERNAL ||
            !strstr(e.text, program_ills[i].said))
            fail_msg("%s: it is said: %s", program_ills[i].name, e.code ? e.text : "nothing");
    }
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_graph_is_refused_for_the_reason_that_it_has),
        cmocka_unit_test(a_broken_program_is_refused_for_the_reason_that_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
