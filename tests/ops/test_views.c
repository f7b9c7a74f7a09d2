// SPDX-License-Identifier: Apache-2.0
// Operands anywhere in a buffer: they are aligned to an element of theirs and to nothing more, each
// in its own way, and what lies around an output stays. Kernels that move whole vectors have to see
// it. And indices beyond 32 bits.
#include "common/op/chain.h"
#include "tests/ops/everywhere.h"

// Around the vectors' lengths: less than one, one, one and a tail, rows that begin between two.
static const struct extents shapes[] = {
    {1, 1, 2, 1},   {1, 4, 3, 2},  {3, 8, 2, 3},    {5, 9, 2, 1},
    {33, 17, 2, 1}, {4, 64, 3, 2}, {2, 1031, 1, 1},
};

// Operand k begins first + k · each elements into its buffer.
static const struct shift {
    int first, each;
} shifts[] = {{1, 0}, {4, 0}, {1, 1}, {2, 4}, {3, 2}};

enum types { F32, BF16, TO_BF16, FROM_BF16, TYPES };
static const char *const type_names[TYPES] = {"of f32", "of bf16", "f32 to bf16", "bf16 to f32"};
#define ALL_TYPES (1u << TYPES) - 1

static const struct row {
    enum op op;
    const char *einsum;
    unsigned types; // a bit each
    bool in_place;
    double lo, hi, rtol, atol;
} table[] = {
    {OP_CAST, "ij->ij", ALL_TYPES, false, -9, 9, 2e-7, 0},
    {OP_ADD, "ij,ij->ij", ALL_TYPES, true, -1, 1, 1e-7, 0},
    {OP_ADD, "ij,j->ij", ALL_TYPES, true, -1, 1, 1e-7, 0},
    {OP_SUB, "i,ij->ij", ALL_TYPES, false, -1, 1, 1e-7, 0},
    {OP_MUL, "ij,ji->ij", ALL_TYPES, false, -1, 1, 1e-7, 0},
    {OP_DIV, "kij,j->ikj", ALL_TYPES, false, 0.5, 2, 1e-7, 0},
    {OP_SCALE, "->ij", ALL_TYPES, false, -1, 1, 1e-7, 0},
    {OP_GELU_GRAD, "ij,ij->ij", ALL_TYPES, false, -4, 4, 2e-6, 2e-6},
    {OP_EQUAL, "ij,j->ij", 1u << F32, false, 0, 3, 0, 0},
    {OP_SPLIT, "cij->ij", 1u << F32 | 1u << BF16, false, -1, 1, 0, 0},
    {OP_STACK, "ij,ij,ij->cij", 1u << F32 | 1u << BF16, false, -1, 1, 0, 0},
    {OP_SGD, "ij,ij,a,b->ij", 1u << F32, true, 0.1, 1, 1e-6, 1e-6},
    {OP_MOMENTUM, "ij,ij,ij,a,b->ij", 1u << F32, true, 0.1, 1, 1e-6, 1e-6},
    {OP_ADAM, "ij,ij,ij,ij,a,b->ij", 1u << F32, true, 0.1, 1, 1e-5, 2e-6},
};

// A bf16 result of several operations may fall to the other side of a tie.
static double rounding(enum types t)
{
    return t == BF16 || t == TO_BF16 ? 0x1p-7 : 0;
}

static void types_set(struct rig_case *c, enum types t)
{
    for (int k = 0; k < c->nin; k++)
        if (c->in[k].dtype == DT_F32 && (t == BF16 || t == FROM_BF16))
            c->in[k].dtype = DT_BF16;
    for (int k = 0; k < c->nout; k++)
        if (t == BF16 || t == TO_BF16)
            c->start[k].dtype = DT_BF16;
}

static void shifts_set(struct rig_case *c, struct shift s)
{
    for (int k = 0; k < c->nin + c->nout; k++)
        c->shift[k] = s.first + k * s.each;
}

static void run_shifted(struct rig_case *c, const char *name, bool in_place, double rtol,
                        double atol)
{
    for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
        shifts_set(c, shifts[s]);
        c->in_place = false;
        run_everywhere(c, name, rtol, atol);
        c->in_place = in_place;
        if (in_place)
            run_everywhere(c, name, rtol, atol);
    }
}

static void row_run(const struct row *r, struct extents s, enum types t)
{
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, s);
    rig_case(&c, &a, r->op, r->einsum, ext);
    c.attr.scale = 0.75f;
    c.attr.lr_scale = 0.5f;
    c.attr.beta1 = 0.9;
    c.attr.beta2 = 0.99;
    c.attr.eps = 1e-8f;
    types_set(&c, t);
    for (int k = 0; k < c.nin; k++)
        rig_fill(&c.in[k], (uint64_t)k + 1, r->lo, r->hi);
    if (op_is(r->op, OP_IS_UPDATE))
        c.in[c.nin - 2].v[CLIP_SKIP] = 0;
    double exact = r->rtol == 0 && r->atol == 0 ? 0 : r->rtol + rounding(t);
    run_shifted(&c, type_names[t], r->in_place && (t == F32 || t == BF16), exact, r->atol);
    arena_clear(&a);
}

static void operands_may_begin_at_any_element(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int t = 0; t < TYPES; t++)
                if (table[i].types >> t & 1)
                    row_run(&table[i], shapes[s], (enum types)t);
}

static void a_chain_reads_and_writes_at_any_element(void **state)
{
    static const struct op_chain chains[] = {
        {3, 3, {{OP_ADD, {0, 1}, 0}, {OP_MUL, {3, 2}, 0}, {OP_SUB, {4, 3}, 0}}, {3, 4, 5}},
        {3, // what is made waits, several at a time, and for unequal times
         8,
         {{OP_ADD, {0, 1}, 0},
          {OP_MUL, {0, 2}, 0},
          {OP_SUB, {1, 2}, 0},
          {OP_MUL, {3, 4}, 0},
          {OP_ADD, {4, 5}, 0},
          {OP_SUB, {3, 5}, 0},
          {OP_MUL, {6, 7}, 0},
          {OP_ADD, {9, 8}, 0}},
         {10, 6, 3}},
    };
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 2 * TYPES; t++) {
            struct arena a = {0};
            struct rig_case c;
            enum types type = (enum types)(t / 2);
            int64_t ext[26];
            letters(ext, shapes[s]);
            rig_case(&c, &a, OP_CHAIN, "ij,j,ij->ij", ext);
            c.attr.chain = &chains[t % 2];
            types_set(&c, type);
            for (int k = 0; k < c.nin; k++)
                rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
            run_shifted(&c, type_names[type], type == F32 || type == BF16, 1e-6 + rounding(type),
                        1e-6);
            arena_clear(&a);
        }
}

static void draws_follow_the_index_not_the_address(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 3; t++) { // normals, dropout of f32 and of bf16
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, shapes[s]);
            rig_case(&c, &a, t ? OP_DROPOUT : OP_NORMAL, t ? "ij,->ij" : "->ij", ext);
            c.attr.draw = (struct op_draw){.seed = 7, .stream = 9, .rate = 0.4f, .n = 2};
            c.attr.draw.from[0] = 2;
            c.attr.draw.from[1] = (int64_t)s; // at every word of a block
            c.attr.draw.extent[0] = 50;
            c.attr.draw.extent[1] = shapes[s].j + 11;
            c.in[t != 0].v[0] = 21;
            if (t)
                types_set(&c, t == 2 ? BF16 : F32);
            if (t)
                rig_fill(&c.in[0], 5, 1, 2);
            run_shifted(&c, "drawn", t != 0, t == 2 ? 0x1p-8 : 5e-7, 0);
            arena_clear(&a);
        }
}

// What decides the length of a copy's words: addresses, distances and rows, in all four dtypes.
static void blocks_lie_anywhere(void **state)
{
    static const struct op_block blocks[] = {
        {{1, 1, 1}, {0, 0, 1}, {0, 0, 1}},         {{1, 1, 3000}, {0, 0, 1}, {0, 0, 1}},
        {{3, 5, 8}, {48, 8, 1}, {80, 16, 1}},      // rows of whole words
        {{3, 5, 6}, {60, 12, 1}, {36, 6, 1}},      // half of them
        {{3, 5, 7}, {35, 7, 1}, {7, 21, 1}},       // odd ones
        {{3, 5, 16}, {90, 17, 1}, {102, 20, 1}},   // whole words an odd distance apart
        {{3, 5, 16}, {128, 16, 1}, {170, 32, 1}},  // an odd distance of the outermost
        {{4, 16, 16}, {512, 32, 1}, {256, 16, 1}}, // a part of every row, to where it is whole
        {{2, 3, 50}, {400, 1, 4}, {300, 50, 1}},   // elements apart
        {{2, 45, 20}, {900, 20, 1}, {900, 1, 45}}, // a transpose
        {{2, 3, 50}, {0, 50, 1}, {150, 50, 1}},    // read twice
    };
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_I32, DT_U8};
    (void)state;
    for (size_t t = 0; t < 4 * sizeof blocks / sizeof *blocks; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[0] = 3000, [1] = 3000};
        rig_case(&c, &a, OP_COPY, "a->b", ext);
        c.attr.block = blocks[t / 4];
        c.in[0].dtype = c.start[0].dtype = types[t % 4];
        rig_fill(&c.in[0], 1, 0, 200);
        rig_fill(&c.start[0], 2, 0, 200);
        run_shifted(&c, "of a block", false, 0, 0);
        arena_clear(&a);
    }
}

// ---- beyond 32 bits -----------------------------------------------------------------------------

// Each of three rows lies beyond what 32 bits count, of elements or of bytes; memory in between is
// not touched.
static void a_copy_reaches_beyond_32_bits(void **state)
{
    enum { ROW = 1000 };
    const struct op_block far = {{3, 1, ROW}, {ROW, 0, 1}, {((int64_t)1 << 31) + 5, 0, 1}};
    const size_t bytes = 2 * (size_t)far.to[0] + ROW;
    struct op_attr attr = {.block = far};
    struct op_call call = {.op = OP_COPY, .attr = &attr, .nin = 1, .nout = 1};
    struct err e = {0};
    uint8_t host[3 * ROW], got[ROW];
    const struct rig *r = &rigs[0];
    (void)state;
    if (!getenv("WEFT_LONG"))
        skip();
    for (int i = 0; i < 3 * ROW; i++)
        host[i] = (uint8_t)(i * 7 % 251);
    call.in[0] = (struct tensor){rig_memory(r, host, sizeof host), DT_U8, {1, {3 * ROW}}};
    call.out[0] = (struct tensor){rig_memory(r, NULL, bytes), DT_U8, {1, {(int64_t)bytes}}};
    if (r->backend->op.run[OP_COPY](r->q, &call, &e) || r->backend->stream.sync(r->q, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 3; i++) {
        rig_read(r, got, (const uint8_t *)call.out[0].data + i * far.to[0], ROW);
        assert_memory_equal(got, host + (size_t)i * ROW, ROW);
    }
    rig_free(r, call.in[0].data);
    rig_free(r, call.out[0].data);
}

// Bits of some thousand numbers whose exponents are far from both ends, the first of which shows
// the piece; a doubled one has an exponent that is one more.
enum { PIECE = 1 << 26, NUMBERS = 0x3c00 - 1, SMALLEST = 0x2000, DOUBLED = 0x80 };

static void piece_fill(uint16_t *host, int piece, int add)
{
    for (int i = 0; i < PIECE; i++)
        host[i] = (uint16_t)(SMALLEST + add + (i ? i % NUMBERS : piece));
}

// 2^31 + 9 numbers, doubled where they lie: 4 GiB.
static void an_elementwise_op_goes_beyond_32_bits(void **state)
{
    const int64_t n = ((int64_t)1 << 31) + 9;
    struct op_attr attr = {.label = {{0}}, .scale = 2, .labels = 1};
    struct op_call call = {.op = OP_SCALE, .attr = &attr, .nin = 1, .nout = 1};
    struct err e = {0};
    const struct rig *r = &rigs[0];
    (void)state;
    if (!getenv("WEFT_LONG"))
        skip();
    uint16_t *host = malloc(2 * PIECE * sizeof *host), *got = host + PIECE;
    uint16_t *memory = rig_memory(r, NULL, (size_t)n * sizeof *memory);
    assert_non_null(host);
    piece_fill(host, 0, 0);
    for (int64_t i = 0; i < n; i += PIECE) {
        size_t bytes = (size_t)(n - i < PIECE ? n - i : PIECE) * sizeof *host;
        host[0] = (uint16_t)(SMALLEST + i / PIECE);
        if (r->backend->stream.copy(r->q, memory + i, host, bytes, &e) ||
            r->backend->stream.sync(r->q, &e))
            fail_msg("%s", e.text);
    }
    call.in[0] = call.out[0] = (struct tensor){memory, DT_BF16, {1, {n}}};
    if (r->backend->op.run[OP_SCALE](r->q, &call, &e) || r->backend->stream.sync(r->q, &e))
        fail_msg("%s", e.text);
    piece_fill(host, 0, DOUBLED);
    for (int64_t i = 0; i < n; i += PIECE) {
        size_t bytes = (size_t)(n - i < PIECE ? n - i : PIECE) * sizeof *host;
        host[0] = (uint16_t)(SMALLEST + DOUBLED + i / PIECE);
        rig_read(r, got, memory + i, bytes);
        if (memcmp(got, host, bytes) != 0)
            fail_msg("elements from %lld on are not what they were, doubled", (long long)i);
    }
    rig_free(r, memory);
    free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_may_begin_at_any_element),
        cmocka_unit_test(a_chain_reads_and_writes_at_any_element),
        cmocka_unit_test(draws_follow_the_index_not_the_address),
        cmocka_unit_test(blocks_lie_anywhere),
        cmocka_unit_test(a_copy_reaches_beyond_32_bits),
        cmocka_unit_test(an_elementwise_op_goes_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
