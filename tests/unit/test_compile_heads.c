// SPDX-License-Identifier: Apache-2.0
// Key heads that query heads share, on meshes that cut the heads: they follow the cut, stay whole,
// or are refused; the numbers are those of one device, repeated work is counted to the FLOP.
#include "tests/unit/decoder_case.h"

#define HEADS(query, key) \
    "program: llama, embed: 24, heads: " #query ", kv_heads: " #key ", head_dim: 4, mlp: 24"

// Which axes cut the heads of a parameter.
static axis_set cut_of(const struct fixture *f, const char *param)
{
    const struct graph *g = f->c.program[PROGRAM_TRAIN]->graph;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && !strcmp(g->values[v].name, param))
            return spec_axes(&g->values[v].spec);
    fail_msg("no %s", param);
    return 0;
}

static void key_heads_follow_the_cut_that_divides_them(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, decoder_text(HEADS(8, 4), "dp: 2, tp: 4", 1, ""), 0);
    assert_int_equal(cut_of(&f, "layers/1/attn/q/weight"), 2);
    assert_int_equal(cut_of(&f, "layers/1/attn/kv/weight"), 2);
    assert_null(find_finding(&f, FINDING_KEY_HEADS, NULL));
    assert_null(find_finding(&f, FINDING_KEY_HEADS_WHOLE, NULL));
    fixture_clear(&f);
}

// Two key heads on eight devices: all make both. 64 tokens, 24 wide, keys and values of 2·4 each, 2
// layers, three passes: 7 times too often. Of 2·24·16 floats a device needs half.
static void fewer_key_heads_than_devices_stay_whole_and_the_repeated_work_is_reported(void **state)
{
    struct fixture f;
    char says[200];
    (void)state;
    compile_text(&f, decoder_text(HEADS(8, 2), "tp: 8", 2, ""), 0);
    assert_int_equal(cut_of(&f, "layers/0/attn/q/weight"), 1);
    assert_int_equal(cut_of(&f, "layers/0/attn/kv/weight"), 0);
    const struct finding *note = find_finding(&f, FINDING_KEY_HEADS_WHOLE, NULL);
    assert_non_null(note);
    assert_string_equal(finding_severity(note->code), "note");
    assert_int_equal(note->axes, 1);
    assert_int_equal(note->waste, 2 * 24 * 16 * 4 / 2);
    snprintf(
        says, sizeof says,
        "act_att: 2 key heads do not divide by 8 (tp): every device makes all keys and values, "
        "%.4g FLOPs a step are repeated (line 2)",
        7.0 * 3 * 2 * 2 * 64 * 24 * 16);
    assert_string_equal(note->message, says);
    assert_string_equal(note->fix, "model.kv_heads=8");
    fixture_clear(&f);
    compile_text(&f, decoder_text(HEADS(8, 8), "tp: 8", 2, ""), 0);
    assert_null(find_finding(&f, FINDING_KEY_HEADS_WHOLE, NULL));
    fixture_clear(&f);
}

static void key_heads_of_another_ratio_are_refused_with_those_that_fit(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, decoder_text(HEADS(12, 3), "tp: 4", 1, ""), ERR_INVALID);
    const struct finding *error = find_finding(&f, FINDING_KEY_HEADS, NULL);
    assert_non_null(error);
    assert_true(f.c.whole);
    assert_string_equal(error->message,
                        "act_att: 3 key heads do not go with 12 query heads cut 4 ways (tp): "
                        "try model.kv_heads of 1, 2, 4, 12 (line 2)");
    assert_string_equal(error->fix, "model.kv_heads=2");
    fixture_clear(&f);
    compile_text(&f, decoder_text(HEADS(12, 2), "tp: 4", 1, ""), 0);
    assert_null(find_finding(&f, FINDING_KEY_HEADS, NULL));
    fixture_clear(&f);
}

static void shared_key_heads_train_to_the_numbers_of_one_device(void **state)
{
    static const struct {
        const char *model, *mesh, *sharding;
    } cases[] = {
        {HEADS(8, 2), "tp: 4", ""},
        {HEADS(8, 1), "tp: 2", ""},
        {HEADS(8, 4), "tp: 4", ""},
        {HEADS(8, 2), "dp: 2, tp: 4", ""},
        {HEADS(8, 2), "fsdp: 2, tp: 4", "activations: {act_seq: [batch, [seq, tp]]}"},
        {HEADS(8, 2), "cp: 2, tp: 4", ""},
        {HEADS(6, 2), "tp: 6", "rules: {mlp: ~, vocab: ~}"},
        {HEADS(8, 2), "x: 2, y: 2", "rules: {heads: [x, y]}"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture one, many;
        struct interp whole, cut;
        compile_text(&one, decoder_text(cases[c].model, "dp: 1", 2, ""), 0);
        compile_text(&many, decoder_text(cases[c].model, cases[c].mesh, 2, cases[c].sharding), 0);
        const struct program *p = many.c.program[PROGRAM_TRAIN];
        interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 2);
        interp_init(&cut, p->graph, &many.c.mesh, 2);
        set_params(&whole);
        set_params(&cut);
        for (int s = 0; s < 2; s++) {
            decoder_step(&whole);
            decoder_step_in(&cut, &p->zigzag);
        }
        compare_params(&whole, &cut, cases[c].mesh);
        interp_clear(&whole);
        interp_clear(&cut);
        fixture_clear(&one);
        fixture_clear(&many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_heads_follow_the_cut_that_divides_them),
        cmocka_unit_test(fewer_key_heads_than_devices_stay_whole_and_the_repeated_work_is_reported),
        cmocka_unit_test(key_heads_of_another_ratio_are_refused_with_those_that_fit),
        cmocka_unit_test(shared_key_heads_train_to_the_numbers_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
