// SPDX-License-Identifier: Apache-2.0
// Random CHAINs and LINEARs against the f64 reference: up to eight steps of any kind on operands
// that lack dimensions or have them in another order, axes of one element, several outputs, some
// over inputs. A case follows from its seed, which a failure names.
//
//   test_chain_random              120 cases; with WEFT_LONG 4,000
//   WEFT_FROM=SEED test_chain_random, from there on
#include "common/base/rand.h"
#include "common/op/chain.h"
#include "tests/ops/everywhere.h"

struct asked { // a case's questions
    uint64_t seed, n;
};

static int pick(struct asked *a, int n)
{
    struct rand_site site = {.seed = a->seed, .stream = 7};
    return (int)(rand_word(&site, a->n++) % (uint32_t)n);
}

static const char whole[] = "ijk";

static void extents_pick(struct asked *a, int64_t ext[26])
{
    static const int64_t sizes[] = {1, 1, 2, 3, 7, 16, 33, 64, 513, 1031};
    struct extents s = {sizes[pick(a, 10)], sizes[pick(a, 8)], sizes[pick(a, 8)], 5};
    if (s.i * s.j * s.k > 40000)
        s.j = 1;
    letters(ext, s);
}

// Behind the product's two: a whole operand first, some of its dimensions after that.
static int operands_pick(struct asked *a, bool linear, struct buf *einsum, bool *third)
{
    static const char *const some[] = {whole, "ij", "ik",  "jk",  "i",  "j",  "k",
                                       "",    "kj", "kji", "jik", "ki", "ikj"};
    int n = 1 + pick(a, 5);
    buf_puts(einsum, linear ? "il,ljk," : "");
    for (int k = 0; k < n; k++) {
        const char *labels = k == 0 || (k == 2 && pick(a, 2)) ? whole : some[pick(a, 13)];
        *third |= k == 2 && labels == whole;
        buf_printf(einsum, "%s%s", k ? "," : "", labels);
    }
    buf_printf(einsum, "->%s", whole);
    return n;
}

static void steps_pick(struct asked *a, struct op_chain *chain)
{
    static const enum op two[] = {OP_ADD,       OP_SUB,           OP_MUL,
                                  OP_GELU_GRAD, OP_RELU_GRAD,     OP_TANH_GRAD,
                                  OP_SILU_GRAD, OP_SOFTPLUS_GRAD, OP_SIGMOID_GRAD};
    static const enum op one[] = {OP_SCALE, OP_RELU,     OP_GELU,   OP_TANH,
                                  OP_SILU,  OP_SOFTPLUS, OP_SIGMOID};
    chain->steps = 1 + pick(a, CHAIN_STEPS);
    for (int s = 0; s < chain->steps; s++) {
        struct op_step *step = &chain->step[s];
        bool both = pick(a, 2);
        step->op =
            both ? two[pick(a, sizeof two / sizeof *two)] : one[pick(a, sizeof one / sizeof *one)];
        step->in[0] = (int8_t)pick(a, chain->inputs + s);
        step->in[1] = (int8_t)(both ? pick(a, chain->inputs + s) : -1);
        step->scale = 0.75f;
    }
}

// Any steps' registers, of a LINEAR the product too.
static int outputs_pick(struct asked *a, bool linear, struct op_chain *chain)
{
    int n = 1 + pick(a, chain->steps < CHAIN_OUTPUTS ? chain->steps : CHAIN_OUTPUTS);
    for (int k = 0; k < n; k++)
        for (bool again = true; again;) {
            bool product = linear && !pick(a, 4);
            chain->out[k] = (int8_t)(product ? 0 : chain->inputs + pick(a, chain->steps));
            again = memchr(chain->out, chain->out[k], (size_t)k) != NULL;
        }
    return n;
}

static void random_case(uint64_t seed)
{
    struct asked a = {.seed = seed};
    struct arena arena = {0};
    struct buf einsum = {0};
    struct op_chain chain = {0};
    struct rig_case c;
    int64_t ext[26];
    char name[200];
    bool linear = pick(&a, 2), third = false;
    extents_pick(&a, ext);
    chain.inputs = operands_pick(&a, linear, &einsum, &third) + linear;
    steps_pick(&a, &chain);
    rig_case(&c, &arena, linear ? OP_LINEAR : OP_CHAIN, buf_str(&einsum), ext);
    c.nout = outputs_pick(&a, linear, &chain);
    c.attr.chain = &chain;
    c.in_place = !linear && (c.nout == 1 || third) && pick(&a, 3);
    for (int k = 0; k < c.nin; k++)
        rig_fill(&c.in[k], 5 + (uint64_t)k + seed, -1, 1);
    snprintf(name, sizeof name, "of seed %llu, %s", (unsigned long long)seed, buf_str(&einsum));
    run_everywhere(&c, name, 1e-4, 1e-4);
    buf_clear(&einsum);
    arena_clear(&arena);
}

static void any_steps_on_any_operands_are_what_they_say(void **state)
{
    (void)state;
    const char *first = getenv("WEFT_FROM");
    uint64_t from = first ? strtoull(first, NULL, 10) : 1, n = getenv("WEFT_LONG") ? 4000 : 120;
    for (uint64_t seed = from; seed < from + n; seed++)
        random_case(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_steps_on_any_operands_are_what_they_say),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
