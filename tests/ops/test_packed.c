// SPDX-License-Identifier: Apache-2.0
// Products that the CPU makes from packed operands, around the edges of its tiles and blocks: right
// in every layout, and with the same bits however the operands are stored, in f32 or in bf16, on
// AVX2 or AVX-512, and however many threads there are. Pairs of bf16 make others, and a decoder's by AMX
// make a third kind, the same too.
// A decoder's products of few rows, which read b as it lies, have these bits as well.
#include "tests/ops/everywhere.h"

#include "common/base/rand.h"
#include "common/op/chain.h"
#include "kernels/cpu/packed.h"

// i, j, k of a product: the least that is packed, one more or less than tiles, blocks and both, and
// one block of rows that end in a tile of 2 and of 4, with several blocks of k.
static const struct extents sizes[] = {
    {64, 64, 1, 1},
    {65, 79, 7, 1},
    {71, 81, PACKED_DEPTH - 1, 1},
    {PACKED_HEIGHT + 1, PACKED_WIDTH + 1, PACKED_DEPTH + 1, 1},
    {PACKED_HEIGHT + 7, 65, 2 * PACKED_DEPTH + 9, 1},
    {67, 2 * PACKED_WIDTH + 17, 30, 1},
    {PACKED_HEIGHT - 6, 112, 40, 1},
    {PACKED_HEIGHT - 4, 96, PACKED_DEPTH + 9, 1},
    {PACKED_HEIGHT - 2, 80, 2 * PACKED_DEPTH, 1},
    {PACKED_HEIGHT - 2, 96, 4 * PACKED_DEPTH, 1},
    {1, 384, PACKED_DEPTH + 33, 1},
    {2, 131, 2 * PACKED_DEPTH + 1, 1},
    {7, 1, 45, 1},
    {12, 16, 1, 1},
    {16, PACKED_WIDTH + 129, 70, 1},
    {STREAMED_HEIGHT, 257, 4 * PACKED_DEPTH + 31, 1},
    {661, 81, PACKED_DEPTH + 90, 1}, // over AMX's blocks
};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const char *const layouts[] = {"ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

// The numbers of one product, stored as the layout says.
static void make_case(struct rig_case *c, struct arena *a, int layout, struct extents s, bool adds,
                      enum dtype t)
{
    int64_t ext[26];
    letters(ext, s);
    rig_case(c, a, OP_MATMUL, layouts[layout], ext);
    c->accumulate = adds;
    c->attr.streams = s.i <= STREAMED_HEIGHT || s.j % 2; // of many rows only AMX looks at it
    rig_fill(&c->start[0], 3, -1, 1);
    for (int operand = 0; operand < 2; operand++) {
        bool turned = operand ? layout & 2 : layout & 1;
        int64_t rows = operand ? s.k : s.i, columns = operand ? s.j : s.k;
        struct ref_tensor *x = &c->in[operand];
        x->dtype = DT_BF16; // what bf16 holds, f32 holds too
        rig_fill(x, (uint64_t)operand + 1, -1, 1);
        x->dtype = t;
        double *v = x->v;
        if (!turned)
            continue;
        x->v = arena_array(a, double, rows *columns);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                x->v[j * rows + i] = v[i * columns + j];
    }
}

static void products_agree_at_the_edges_of_blocks(void **state)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    (void)state;
    for (int n = 0; n < 2 * SIZES; n++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int adds = 0; adds < (layout ? 1 : 2); adds++) {
                struct arena a = {0};
                struct rig_case c;
                make_case(&c, &a, layout, sizes[n / 2], adds, dtypes[n % 2]);
                run_everywhere(&c, layouts[layout], 1e-6, 0x1p-24 * (double)(sizes[n / 2].k + 4));
                arena_clear(&a);
            }
}

// Which of three kinds of bits a rig's product has: of elements one by one, of pairs, of AMX's tiles.
static int kind_of_bits(const struct rig *r, const struct rig_case *c)
{
    bool amx = strcmp(r->info.isa, "amx") == 0;
    if (c->in[0].dtype != DT_BF16 || (!amx && strcmp(r->info.isa, "avx512bf16") != 0))
        return 0;
    return amx && c->attr.streams && c->start[0].shape.dim[0] >= TILED_HEIGHT ? 2 : 1;
}

static void neither_storage_nor_dtype_nor_threads_change_a_bit(void **state)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        struct arena a = {0};
        double *first[3] = {NULL}; // of each kind
        for (int n = 0; n < 2 * LAYOUTS; n++)
            for (int r = 0; r < nrigs; r++) {
                int layout = n / 2, t = n % 2;
                struct rig_case c;
                double *got[OP_MAX_OUT];
                if (!strstr(rigs[r].info.libraries, "packed"))
                    continue;
                make_case(&c, &a, layout, sizes[s], false, dtypes[t]);
                rig_run(&rigs[r], &c, &a, got);
                const int kind = kind_of_bits(&rigs[r], &c);
                if (first[kind])
                    same_bits(layouts[layout], got[0], first[kind], sizes[s].i * sizes[s].j);
                first[kind] = first[kind] ? first[kind] : got[0];
            }
        arena_clear(&a);
    }
}

// Products that stream, by chance: rows, columns, batches that one operand lacks, a chain behind them.
static void streamed_products_of_any_shape_agree(void **state)
{
    static const char *const of[] = {"ik,kj->ij", "ik,lkj->lij", "lik,lkj->lij",  "ik,ljk->lij",
                                     "ki,kj->ij", "lik,lkj->ij", "ik,lkj,lj->lij"};
    static const struct op_chain bias = {2, 1, {{OP_ADD, {0, 1}, 0}}, {2}};
    enum { KINDS = sizeof of / sizeof *of, WITH_BIAS = KINDS - 1 };
    const struct rand_site site = {.seed = 31};
    (void)state;
    for (uint64_t n = 0; n < 60; n++) {
        const uint32_t most[] = {STREAMED_HEIGHT, 700, 2 * PACKED_DEPTH + 40, 3};
        int64_t size[4], ext[26];
        struct arena a = {0};
        struct rig_case c;
        const int kind = (int)(n % KINDS);
        for (uint64_t i = 0; i < 4; i++)
            size[i] = 1 + (int64_t)(rand_uniform(&site, 4 * n + i) * most[i]);
        size[0] = n % 3 ? size[0] % 17 + 1 : size[0];
        letters(ext, (struct extents){size[0], size[1], size[2], size[3]});
        rig_case(&c, &a, kind == WITH_BIAS ? OP_LINEAR : OP_MATMUL, of[kind], ext);
        c.attr.chain = kind == WITH_BIAS ? &bias : NULL;
        c.nout = 1;
        c.attr.streams = true;
        c.accumulate = kind != WITH_BIAS && n % 2;
        rig_fill(&c.start[0], 3, -1, 1);
        for (int k = 0; k < c.nin; k++) {
            c.in[k].dtype = n % 5 < 2 && kind != WITH_BIAS ? DT_BF16 : DT_F32;
            rig_fill(&c.in[k], n + (uint64_t)k, -1, 1);
        }
        run_everywhere(&c, of[kind], 1e-6, 0x1p-24 * (double)(size[2] * size[3] + 4));
        arena_clear(&a);
    }
}

// So it does not matter which row of a call a text has.
static void a_decoders_rows_have_the_bits_of_few_however_many_there_are(void **state)
{
    enum { FEW = TILED_HEIGHT, DEEP = PACKED_DEPTH + 90 };
    static const int64_t columns[] = {1, 9, 63, 80}, rows[] = {FEW, STREAMED_HEIGHT + 1, 150};
    (void)state;
    for (int n = 0; n < 8 * nrigs; n++) {
        const struct rig *r = &rigs[n / 8];
        const int64_t wide = columns[n % 8 / 2];
        struct arena a = {0};
        double *first[OP_MAX_OUT], *got[OP_MAX_OUT];
        for (int i = 0; i < 3; i++) {
            struct rig_case c;
            make_case(&c, &a, 0, (struct extents){rows[i], wide, DEEP, 1}, false,
                      n % 2 ? DT_BF16 : DT_F32);
            c.attr.streams = true;
            rig_run(r, &c, &a, i ? got : first);
            if (i && strstr(r->info.libraries, "packed"))
                same_bits(r->info.isa, got[0], first[0], FEW * wide);
        }
        arena_clear(&a);
    }
}

int main(void)
{
    setenv("WEFT_CPU_PRODUCTS", "packed", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_at_the_edges_of_blocks),
        cmocka_unit_test(neither_storage_nor_dtype_nor_threads_change_a_bit),
        cmocka_unit_test(streamed_products_of_any_shape_agree),
        cmocka_unit_test(a_decoders_rows_have_the_bits_of_few_however_many_there_are),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
