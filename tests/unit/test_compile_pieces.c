// SPDX-License-Identifier: Apache-2.0
// What SPLIT takes apart and STACK puts together lies in one buffer, and nothing is copied, where the
// pieces live as long as the whole; the verifier sees who takes one piece for another.
#include "common/compile/program/verify.h"
#include "tests/unit/compile_case.h"

#define JOB(model)                                                                               \
    "name: t\n"                                                                                  \
    "model: {program: " model ", layers: 2, embed: 32, heads: 4, mlp: 16, seq: 16, vocab: 12}\n" \
    "mesh: {dp: 2}\n"                                                                            \
    "data: {format: tokens, train: {tokens: x.bin}, batch: 16}\n"                                \
    "train: {steps: 1, microbatches: 2}\n"
enum { LAYERS = 2, MICROBATCHES = 2, PIECE = 4 * 16 * 32 * 4 }; // samples, seq, embed, bytes

static int count_ops(const struct program *p, enum op op)
{
    int n = 0;
    for (int i = 0; i < p->ninstrs; i++)
        n += p->instrs[i].kind == INSTR_OP && p->instrs[i].op == op;
    return n;
}

static int find_op(const struct program *p, enum op op)
{
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_OP && p->instrs[i].op == op)
            return i;
    fail_msg("no %s", op_name(op));
    return -1;
}

static void assert_thirds(const struct program *p, const struct view *v)
{
    assert_int_equal(p->buffers[v[0].buffer].bytes, 3 * PIECE);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(v[k].buffer, v[0].buffer);
        assert_int_equal(v[k].offset, k * PIECE);
    }
}

static void pieces_lie_in_their_whole(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB("gpt2"), 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    assert_int_equal(count_ops(p, OP_SPLIT) + count_ops(p, OP_STACK), 0);
    assert_int_equal(count_ops(p, OP_ATTENTION_GRAD), LAYERS * MICROBATCHES);
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_OP)
            continue;
        if (in->op == OP_ATTENTION || in->op == OP_ATTENTION_GRAD)
            assert_thirds(p, in->in);
        if (in->op == OP_ATTENTION_GRAD)
            assert_thirds(p, in->out);
    }
    fixture_clear(&f);
}

// Llama turns its keys, which are not read again, and keeps its values: the keys' bytes would be
// kept with them.
static void pieces_that_end_apart_are_copied(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB("llama, kv_heads: 4"), 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    assert_int_equal(count_ops(p, OP_SPLIT), LAYERS * MICROBATCHES);
    assert_int_equal(count_ops(p, OP_STACK), LAYERS * MICROBATCHES);
    fixture_clear(&f);
}

static void reads_a_piece_for_another(struct program *p)
{
    struct view *v = (struct view *)(uintptr_t)p->instrs[find_op(p, OP_ATTENTION)].in;
    v[0].offset = PIECE;
}
static void makes_a_piece_over_another(struct program *p)
{
    struct view *v = (struct view *)(uintptr_t)p->instrs[find_op(p, OP_ATTENTION_GRAD)].out;
    v[1].offset = 0;
}
static void makes_a_piece_beyond_the_whole(struct program *p)
{
    struct view *v = (struct view *)(uintptr_t)p->instrs[find_op(p, OP_ATTENTION_GRAD)].out;
    v[2].offset = 3 * PIECE;
}

static void a_piece_in_another_place_is_refused(void **state)
{
    (void)state;
    static const struct {
        void (*make)(struct program *p);
        const char *said;
    } ills[] = {
        {reads_a_piece_for_another, "reads something else"},
        {makes_a_piece_over_another, "reads something else"},
        {makes_a_piece_beyond_the_whole, "beyond its buffer"},
    };
    for (size_t i = 0; i < sizeof ills / sizeof *ills; i++) {
        struct fixture f;
        struct err e = {0};
        compile_text(&f, JOB("gpt2"), 0);
        struct program p = *f.c.program[PROGRAM_TRAIN];
        assert_int_equal(verify_program(&p, &f.c.memory, &e), 0);
        ills[i].make(&p);
        assert_int_equal(verify_program(&p, &f.c.memory, &e), ERR_INTERNAL);
        if (!strstr(e.text, ills[i].said))
            fail_msg("ill %zu: it is said: %s", i, e.text);
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_lie_in_their_whole),
        cmocka_unit_test(pieces_that_end_apart_are_copied),
        cmocka_unit_test(a_piece_in_another_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
