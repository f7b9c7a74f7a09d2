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

// n views, one behind the other, are all of a buffer.
static void assert_pieces(const struct program *p, const struct view *v, int n)
{
    assert_int_equal(p->buffers[v[0].buffer].bytes, n * PIECE);
    for (int k = 0; k < n; k++) {
        assert_int_equal(v[k].buffer, v[0].buffer);
        assert_int_equal(v[k].offset, k * PIECE);
    }
}

// What attention reads and its gradient makes, from operand `first` on, are n pieces.
static void assert_attention_in_pieces(const struct program *p, int first, int n)
{
    assert_int_equal(count_ops(p, OP_SPLIT) + count_ops(p, OP_STACK), 0);
    assert_int_equal(count_ops(p, OP_ATTENTION_GRAD), LAYERS * MICROBATCHES);
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_OP)
            continue;
        if (in->op == OP_ATTENTION || in->op == OP_ATTENTION_GRAD)
            assert_pieces(p, in->in + first, n);
        if (in->op == OP_ATTENTION_GRAD)
            assert_pieces(p, in->out + first, n);
    }
}

static void pieces_lie_in_their_whole(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB("gpt2"), 0);
    assert_attention_in_pieces(f.c.program[PROGRAM_TRAIN], 0, 3);
    fixture_clear(&f);
}

// Llama turns its queries and keys, and their gradients back, each where it lies: so the keys end
// with the values, and the gradients of both begin together.
static void what_is_turned_stays_in_its_place(void **state)
{
    static const char *const remat[] = {"train.remat=none", "train.remat=block",
                                        "train.remat=full"};
    (void)state;
    for (int r = 0; r < 3; r++) {
        struct fixture f;
        assert_int_equal(compile_with(&f, JOB("llama, kv_heads: 4"), &remat[r], 1), 0);
        const struct program *p = f.c.program[PROGRAM_TRAIN];
        assert_attention_in_pieces(p, 1, 2);
        for (int i = 0; i < p->ninstrs; i++) {
            const struct instr *in = &p->instrs[i];
            if (in->kind == INSTR_OP && in->op == OP_ROTARY)
                assert_memory_equal(&in->in[0], &in->out[0], sizeof in->in[0]);
        }
        fixture_clear(&f);
    }
}

// Qwen3's keys are normed before they are turned, so they are read once more than its values: the
// values' bytes would be kept with them. The gradients begin together: the keys' is turned back and
// goes through the norm where it lies.
static void pieces_that_end_apart_are_copied(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, JOB("qwen3, kv_heads: 4, head_dim: 8"), 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    assert_int_equal(count_ops(p, OP_SPLIT), LAYERS * MICROBATCHES);
    assert_int_equal(count_ops(p, OP_STACK), 0);
    assert_int_equal(count_ops(p, OP_ATTENTION_GRAD), LAYERS * MICROBATCHES);
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_OP && p->instrs[i].op == OP_ATTENTION_GRAD)
            assert_pieces(p, p->instrs[i].out + 1, 2);
    fixture_clear(&f);
}

#define TWICE(lines)                                                        \
    "name: t\n"                                                             \
    "model:\n"                                                              \
    "  program: ./t.model\n"                                                \
    "  text: \"sizes\\n  heads = 4\\n  head_dim = 8\\n  embed = 32\\n"      \
    "  seq = 16\\n  vocab = 12\\n  theta = 100.0\\n"                        \
    "model\\n  x = embed(tokens, ids[vocab, embed])\\n"                     \
    "  y = x @ two[2, embed, heads, head_dim]\\n  a, b = y\\n  c, d = y\\n" \
    "  x = " lines "\\n  logits = x @ head[heads, head_dim, vocab]\\n"      \
    "  loss = cross_entropy(logits, targets)\\n\"\n"                        \
    "mesh: {dp: 2}\n"                                                       \
    "data: {format: tokens, train: {tokens: x.bin}, batch: 16}\n"           \
    "train: {steps: 1}\n"

// What one SPLIT takes from a whole is not turned where a second one reads it.
static void a_piece_that_is_read_twice_is_not_turned_in_its_place(void **state)
{
    static const char *const jobs[] = {TWICE("attention(rotary(a), b, b) + attention(c, d, d)"),
                                       TWICE("attention(a, b, b) + attention(rotary(c), d, d)")};
    (void)state;
    for (size_t t = 0; t < sizeof jobs / sizeof *jobs; t++) {
        struct fixture f;
        compile_text(&f, jobs[t], 0);
        assert_true(count_ops(f.c.program[PROGRAM_TRAIN], OP_SPLIT) > 0);
        fixture_clear(&f);
    }
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

static void turns_a_piece_over_another(struct program *p)
{
    int at = find_op(p, OP_ATTENTION) - 1; // turns the keys
    struct view *v = (struct view *)(uintptr_t)p->instrs[at].out;
    assert_int_equal(p->instrs[at].op, OP_ROTARY);
    v[0].offset = PIECE;
}

static void a_piece_in_another_place_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *job;
        void (*make)(struct program *p);
        const char *said;
    } ills[] = {
        {JOB("gpt2"), reads_a_piece_for_another, "reads something else"},
        {JOB("gpt2"), makes_a_piece_over_another, "reads something else"},
        {JOB("gpt2"), makes_a_piece_beyond_the_whole, "beyond its buffer"},
        {JOB("llama, kv_heads: 4"), turns_a_piece_over_another, "reads something else"},
    };
    for (size_t i = 0; i < sizeof ills / sizeof *ills; i++) {
        struct fixture f;
        struct err e = {0};
        compile_text(&f, ills[i].job, 0);
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
        cmocka_unit_test(what_is_turned_stays_in_its_place),
        cmocka_unit_test(pieces_that_end_apart_are_copied),
        cmocka_unit_test(a_piece_that_is_read_twice_is_not_turned_in_its_place),
        cmocka_unit_test(a_piece_in_another_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
