// SPDX-License-Identifier: Apache-2.0
// Plans of models of one's own, tests/unit/programs: their pictures, by hand.
#include "common/explain/picture.h"
#include "tests/unit/compile_case.h"

#define IMAGES "{format: npy, train: {images: i, labels: l}, "
#define ALONE  "{format: npy, train: {images: i}, "
#define TOKENS "{format: tokens, train: {tokens: t}, "

static char *draw(enum picture p, const char *program, const char *data, const char *mesh,
                  int microbatches)
{
    struct fixture f;
    struct buf out = {0};
    char text[1000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {program: ./tests/unit/programs/%s.model}\ndata: %sbatch: 24}\n"
             "mesh: {%s}\ntrain: {steps: 1, microbatches: %d}\n",
             program, data, mesh, microbatches);
    compile_text(&f, text, 0);
    picture_print(p, &f.c, 100, &out);
    fixture_clear(&f);
    return out.data;
}

static void expect_parts(char *drawn, const char *const *parts)
{
    for (; *parts; parts++)
        if (!strstr(drawn, *parts))
            fail_msg("no\n%s\nin\n%s", *parts, drawn);
    free(drawn);
}

// On {dp: 2, tp: 2} rank = 2·dp + tp. Queries have 8 heads, cut on tp; the one key head is not. The
// MLP's 24 features are cut on tp, as columns of gate and as rows of down.
static void a_parallel_block_is_cut_by_heads_and_by_mlp(void **state)
{
    static const char *const parts[] = {"\nlayers/*/q/weight  24×8×4 [~, tp, ~]\n"
                                        "  2 blocks of 24×4×4, each on 2 devices, copies\n",
                                        "\nlayers/*/kv/weight  2×24×1×4 [~, ~, ~, ~]\n"
                                        "  whole on 4 devices, copies: 0-3\n",
                                        "\nlayers/*/gate/weight  24×24 [~, tp]\n"
                                        "  2 blocks of 24×12, each on 2 devices, copies\n"
                                        "    0:12    12:24\n"
                                        "  ┌───────┬───────┐\n"
                                        "  │ 0,2   │ 1,3   │\n"
                                        "  └───────┴───────┘\n",
                                        "\nlayers/*/down/weight  24×24 [tp, ~]\n"
                                        "  2 blocks of 12×24, each on 2 devices, copies\n",
                                        NULL};
    (void)state;
    expect_parts(draw(PICTURE_SHARDING, "parallel", TOKENS, "dp: 2, tp: 2", 1), parts);
}

// Patches have no rule, and a classifier's classes neither; fsdp cuts embed, of a stack too.
static void an_encoder_is_cut_by_embed_and_by_heads(void **state)
{
    static const char *const parts[] = {"\npatches/weight  24×12×24 [~, ~, fsdp]\n"
                                        "  2 blocks of 24×12×12, each on 2 devices, copies\n",
                                        "\nlayers/*/attn/qkv/weight  3×24×8×4 [~, fsdp, tp, ~]\n"
                                        "  4 blocks of 3×12×4×4\n",
                                        "\nlayers/*/mlp/in/bias  48 [tp]\n"
                                        "  2 blocks of 24, each on 2 devices, copies\n"
                                        "    0:24    24:48\n"
                                        "  ┌───────┬───────┐\n"
                                        "  │ 0,2   │ 1,3   │\n"
                                        "  └───────┴───────┘\n",
                                        "\nclassifier/weight  24×6 [fsdp, ~]\n"
                                        "  2 blocks of 12×6, each on 2 devices, copies\n",
                                        NULL};
    (void)state;
    expect_parts(draw(PICTURE_SHARDING, "encoder", IMAGES, "fsdp: 2, tp: 2", 1), parts);
}

// Five numbered blocks on five stages, whose last also has `out`: a forward takes 1, a backward 2, so
// that the last stage's first backward begins at 5 and the first stage's last ends at 18, of which
// each works 6. What b and a of the way down are needed for on the way up changes no turn.
static void a_u_of_blocks_is_a_pipeline_of_them(void **state)
{
    char *drawn = draw(PICTURE_SCHEDULE, "unet", ALONE, "pp: 5", 2);
    (void)state;
    assert_string_equal(
        drawn, "a step of 5 stages and 2 microbatches, time to the right\n"
               "stage 0   │F0 F1 ·  ·  ·  ·  ·  ·  ·  ·  ·  ·  ·  B0    ·  B1    │ U\n"
               "stage 1   │·  F0 F1 ·  ·  ·  ·  ·  ·  ·  ·  B0    ·  B1    ·  ·  │ U\n"
               "stage 2   │·  ·  F0 F1 ·  ·  ·  ·  ·  B0    ·  B1    ·  ·  ·  ·  │ U\n"
               "stage 3   │·  ·  ·  F0 F1 ·  ·  B0    ·  B1    ·  ·  ·  ·  ·  ·  │ U\n"
               "stage 4   │·  ·  ·  ·  F0 B0    F1 B1    ·  ·  ·  ·  ·  ·  ·  ·  │ U\n"
               "F forward, B backward (twice as long), each of a microbatch; U update; · waits\n"
               "stages wait 0.667 of the time\n");
    free(drawn);
    static const char *const parts[] = {"\nlayers/2/weight  24×12 [~, ~]\n"
                                        "  whole on 1 device: 2\n",
                                        "\nout/weight  48×24 [~, ~]\n"
                                        "  whole on 1 device: 4\n",
                                        NULL};
    expect_parts(draw(PICTURE_SHARDING, "unet", ALONE, "pp: 5", 2), parts);
}

// Both towers' layers, in the order of the text; what they meet in has no rule.
static void two_towers_are_drawn_one_after_the_other(void **state)
{
    static const char *const parts[] = {"\nleft/layers/*/in/weight  24×48 [~, tp]\n"
                                        "  2 blocks of 24×24\n"
                                        "    0:24    24:48\n"
                                        "  ┌───────┬───────┐\n"
                                        "  │ 0     │ 1     │\n"
                                        "  └───────┴───────┘\n",
                                        "\nleft/meet/weight  24×12 [~, ~]\n"
                                        "  whole on 2 devices, copies: 0,1\n",
                                        "\nright/layers/*/out/weight  48×24 [tp, ~]\n"
                                        "  2 blocks of 24×24\n",
                                        NULL};
    (void)state;
    expect_parts(draw(PICTURE_SHARDING, "towers", TOKENS, "tp: 2", 1), parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parallel_block_is_cut_by_heads_and_by_mlp),
        cmocka_unit_test(an_encoder_is_cut_by_embed_and_by_heads),
        cmocka_unit_test(a_u_of_blocks_is_a_pipeline_of_them),
        cmocka_unit_test(two_towers_are_drawn_one_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
