// SPDX-License-Identifier: Apache-2.0
// Work that devices repeat: its cause is named, and a fix that is suggested is put into the job, compiled
// and ends it, over many models, meshes and rules that do not suit them.
#include "common/explain/cost.h"
#include "tests/unit/compile_case.h"

#define TOKENS "{format: tokens, train: {tokens: t}, batch: 24}"
#define IMAGES "{format: npy, dtype: u8, train: {images: i, labels: l}, batch: 24}"
#define OWN(name, data)                                         \
    {                                                           \
        "{program: ./tests/unit/programs/" name ".model}", data \
    }

// Sizes that cuts of 2, 3, 4 and 6 divide.
static const struct model {
    const char *model, *data;
} models[] = {
    {"{program: mlp, inputs: 24, hidden: [48, 24, 48], classes: 12}", IMAGES},
    {"{program: vae, inputs: 24, hidden: [24, 24, 24], latent: 6}",
     "{format: npy, dtype: u8, train: {images: i}, batch: 24}"},
    {"{program: gpt2, layers: 2, embed: 24, heads: 12, seq: 24, vocab: 21, vocab_multiple: 24}",
     TOKENS},
    {"{program: llama, layers: 2, embed: 24, heads: 6, kv_heads: 6, mlp: 48, seq: 24, vocab: 24}",
     TOKENS},
    {"{program: mixtral, layers: 2, embed: 24, heads: 6, kv_heads: 6, mlp: 24, seq: 24, vocab: 24, "
     "experts: 12, capacity: 2}",
     TOKENS},
    {"{program: jaxformer, blocks: 2, layers_per_block: 2, embed: 24, heads: 12, head_dim: 2, "
     "latent: 12, rotary: 4, mlp: 24, experts: 12, capacity: 3, seq: 24, vocab: 24}",
     TOKENS},
    {"{program: deepseek-v2-lite, layers: 2, embed: 24, heads: 12, head_dim: 4, rotary: 2, value: "
     "6, latent: 12, mlp: 48, narrow: 24, experts: 12, choices: 3, capacity: 6, seq: 24, vocab: "
     "24}",
     TOKENS},
    OWN("parallel", TOKENS),
    OWN("mixer", IMAGES),
    OWN("encoder", IMAGES),
    OWN("towers", TOKENS),
    OWN("multiquery", TOKENS),
    OWN("soft_experts", TOKENS),
    OWN("unet", "{format: npy, dtype: u8, train: {images: i}, batch: 24}"),
};
static const char *const shardings[] = {
    // A mesh, and rules that leave something whole on it.
    "mesh: {dp: 2, tp: 2}\nsharding: {rules: {mlp: ~}}\n",
    "mesh: {tp: 2}\nsharding: {rules: {heads: ~, vocab: ~}}\n",
    "mesh: {tp: 4}\nsharding: {rules: {mlp: ~, vocab: ~}}\n",
    "mesh: {dp: 2, ep: 2}\nsharding: {rules: {batch: dp}}\n",
    "mesh: {dp: 2, ep: 4}\nsharding: {rules: {batch: dp}}\n",
    "mesh: {tp: 2, ep: 3}\nsharding: {rules: {batch: ~}}\n",
    "mesh: {fsdp: 2, x: 2}\n",
    "mesh: {dp: 2, fsdp: 2}\nsharding: {rules: {batch: fsdp}}\n",
    "mesh: {x: 2, y: 3}\nsharding: {rules: {batch: x, mlp: y}}\n",
    "mesh: {x: 2, y: 2}\nsharding: {rules: {batch: x, heads: y}}\n",
    "mesh: {x: 2, y: 2}\nsharding: {rules: {vocab: x, mlp: y}}\n",
    "mesh: {pp: 2, tp: 2}\nsharding: {rules: {mlp: ~}}\n",
    "mesh: {dp: 2, cp: 2}\nsharding: {rules: {seq: ~}}\n",
};
enum { MODELS = sizeof models / sizeof *models, SHARDINGS = sizeof shardings / sizeof *shardings };

static const enum finding_code repeats[] = {FINDING_EXPERTS_ALONE, FINDING_SIZE_UNRULED,
                                            FINDING_REDUNDANT};
enum { REPEATS = sizeof repeats / sizeof *repeats };

static const char *job_of(const struct model *m, const char *rest)
{
    static char text[2000];
    snprintf(text, sizeof text, "name: t\nmodel: %s\ndata: %s\ntrain: {steps: 1}\n%s", m->model,
             m->data, rest);
    return text;
}

// The settings of a fix, in place of its " and "s. Returns their number.
static int split_fix(char *fix, const char *set[8])
{
    int n = 0;
    for (char *at = fix; at; n++) {
        char *end = strstr(at, " and ");
        assert_true(n < 8);
        set[n] = at;
        if (end)
            *end = 0;
        at = end ? end + 5 : NULL;
    }
    return n;
}

// With the fix the finding is gone, and no error, nor another word of repeated work, took its place.
static void check_fix(const char *text, const struct finding *one)
{
    struct fixture f;
    const char *set[8];
    char fix[400];
    snprintf(fix, sizeof fix, "%s", one->fix);
    int rc = compile_with(&f, text, set, split_fix(fix, set));
    const struct finding *left = find_finding(&f, one->code, one->tensor);
    if (rc || left)
        fail_msg("%s\n%s, -s '%s': %s", text, one->message, one->fix,
                 rc ? f.e.text : left->message);
    fixture_clear(&f);
}

// How many findings of repeated work there are, and for how many of these a fix is suggested.
static void check_job(const char *text, int *found, int *fixed)
{
    struct fixture f;
    bool parsed;
    (void)compile_or_not(&f, text, &parsed); // what repeats nothing has no stages
    for (int i = 0; i < f.found.n; i++)
        for (int k = 0; k < REPEATS; k++) {
            const struct finding *one = &f.found.items[i];
            if (one->code != repeats[k] || f.found.errors)
                continue;
            ++*found;
            *fixed += one->fix != NULL;
            if (one->fix)
                check_fix(text, one);
            else
                print_message("%s%s\n", text, one->message);
        }
    fixture_clear(&f);
}

static void each_fix_of_repeated_work_ends_it(void **state)
{
    int found = 0, fixed = 0;
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int s = 0; s < SHARDINGS; s++)
            check_job(job_of(&models[m], shardings[s]), &found, &fixed);
    if (found < 60 || fixed != found)
        fail_msg("%d findings, %d with a fix", found, fixed);
}

// What devices do of the step that is no repetition, with these settings on top.
static double find_utilisation(const char *text, const char *fix)
{
    struct fixture f;
    struct cost cost;
    const char *set[8];
    char settings[400];
    snprintf(settings, sizeof settings, "%s", fix ? fix : "");
    assert_int_equal(compile_with(&f, text, set, fix ? split_fix(settings, set) : 0), 0);
    cost_count(&f.c, &f.a, &cost);
    fixture_clear(&f);
    return cost.utilisation;
}

static void expect_finding(const char *text, enum finding_code code, const char *says,
                           const char *fix)
{
    struct fixture f;
    assert_int_equal(compile_with(&f, text, NULL, 0), 0);
    const struct finding *one = find_finding(&f, code, NULL);
    if (!one)
        fail_msg("no %s", finding_name(code));
    if (!strstr(one->message, says))
        fail_msg("%s", one->message);
    if (fix)
        assert_string_equal(one->fix, fix);
    else
        assert_null(one->fix);
    if (fix)
        check_fix(text, one);
    fixture_clear(&f);
}

static bool is_silent(const char *text)
{
    struct fixture f;
    bool silent = true;
    compile_text(&f, text, 0);
    for (int k = 0; k < REPEATS; k++)
        silent = silent && !find_finding(&f, repeats[k], NULL);
    fixture_clear(&f);
    return silent;
}

// ---- experts alone -----------------------------------------------------------------------------

#define MIXTRAL                                                                                   \
    "name: t\nmodel: {program: mixtral, layers: 4, embed: 64, heads: 8, mlp: 128, seq: 64, "      \
    "vocab: "                                                                                     \
    "512}\ndata: {format: tokens, train: {tokens: t}, batch: %d}\ntrain: {steps: 1}\nmesh: {dp: " \
    "2, "                                                                                         \
    "ep: %d}\nsharding: {rules: {batch: dp}}\n"

static const char *mixtral_of(int batch, int ep)
{
    static char text[1000];
    snprintf(text, sizeof text, MIXTRAL, batch, ep);
    return text;
}

// Most of a mixture's work is the experts': what the rest wastes may be under any limit.
static void experts_alone_are_reported_however_little_that_wastes(void **state)
{
    const char *text = mixtral_of(16, 2);
    (void)state;
    double before = find_utilisation(text, NULL);
    assert_true(before > 0.75 && before < 0.9);
    expect_finding(text, FINDING_EXPERTS_ALONE,
                   "ep deals experts and does not cut the batch: all else is computed 2 times over",
                   "sharding.rules.batch=[dp, ep]");
    assert_true(find_utilisation(text, "sharding.rules.batch=[dp, ep]") == 1);
    assert_true(is_silent("name: t\nmodel: {program: mixtral, layers: 2, embed: 32, heads: 8, mlp: "
                          "24, seq: 24, vocab: 24}\ndata: {format: tokens, train: {tokens: t}, "
                          "batch: 24}\ntrain: {steps: 1}\nmesh: {ep: 2, tp: 2}\n"));
}

static void where_the_batch_cannot_have_their_axis_it_is_said_why(void **state)
{
    (void)state;
    expect_finding(mixtral_of(4, 4), FINDING_EXPERTS_ALONE,
                   "for the batch to have it too data.batch must be a multiple of 8", NULL);
}

// ---- sizes without a rule ----------------------------------------------------------------------

// A hidden layer of 4 · mlp, beside one of mlp.
#define INNER(like)                                                                               \
    "name: t\nmodel: {program: ./inner.model, text: \"# Two widths\\nsizes\\n  embed = 24\\n  "   \
    "mlp = "                                                                                      \
    "24\\n  inner = 4 * mlp" like                                                                 \
    "\\n  inputs = 24\\n  classes = 6\\nmodel\\n  x = images @ first[inputs, embed]\\n  x = x + " \
    "relu(x @ a[embed, mlp]) @ b[mlp, embed]\\n  x = x + relu(x @ c[embed, inner]) @ d[inner, "   \
    "embed]\\n  loss = cross_entropy(x @ last[embed, classes], labels)\\n\"}\ndata: " IMAGES      \
    "\ntrain: {steps: 1}\n"

static void a_multiple_of_a_ruled_size_is_named_with_its_line(void **state)
{
    static const char *const text = INNER("") "mesh: {tp: 2}\n";
    (void)state;
    assert_true(find_utilisation(text, NULL) < 0.7);
    expect_finding(
        text, FINDING_SIZE_UNRULED,
        "model.inner = 4 * mlp, line 5 of program ./inner.model: no rule cuts it, and tp "
        "cuts mlp, of which it is a multiple: try `like mlp` there",
        "sharding.rules.inner=tp");
    assert_true(find_utilisation(text, "sharding.rules.inner=tp") > 0.85);
    assert_true(is_silent(INNER(" like mlp") "mesh: {tp: 2}\n"));
    assert_true(is_silent(INNER("") "mesh: {dp: 2}\n"));
    assert_true(is_silent(INNER("") "mesh: {tp: 2}\nsharding: {rules: {inner: tp}}\n"));
}

// first is 24 × 48, second 48 × 96, third 96 × 6, and mlp cuts 24 × 24 and 24 × 24: of 7,488 weights
// `wide` has 5,184, 69 in a hundred; `narrow` has 5,760, 77.
static void a_size_of_most_parameters_without_a_rule_is_named(void **state)
{
    static const char *const text =
        "name: t\nmodel: {program: ./wide.model, text: \"# No rule\\nsizes\\n  mlp = 24\\n  narrow "
        "= "
        "48\\n  wide = 96\\n  inputs = 24\\n  classes = 6\\nmodel\\n  x = images + relu(images @ "
        "a[inputs, mlp]) @ b[mlp, inputs]\\n  x = relu(x @ first[inputs, narrow])\\n  x = relu(x @ "
        "second[narrow, wide])\\n  loss = cross_entropy(x @ third[wide, classes], "
        "labels)\\n\"}\ndata: " IMAGES "\ntrain: {steps: 1}\nmesh: {tp: 2}\n";
    (void)state;
    expect_finding(
        text, FINDING_SIZE_UNRULED,
        "model.narrow = 48, line 4 of program ./wide.model: no rule cuts it, and 77 % of "
        "the parameters have it and nothing else that tp cuts",
        "sharding.rules.narrow=tp");
}

// ---- no rules help -----------------------------------------------------------------------------

// Five devices and no dimension of five but the vocabulary: nothing else divides.
static void where_no_rules_help_no_fix_is_suggested(void **state)
{
    (void)state;
    expect_finding(
        "name: t\nmodel: {program: gpt2, layers: 2, embed: 24, heads: 12, seq: 24, vocab: "
        "25, vocab_multiple: 1}\n"
        "data: " TOKENS "\ntrain: {steps: 1}\nmesh: {x: 5}\n"
        "sharding: {rules: {vocab: x}}\n",
        FINDING_REDUNDANT, "devices along x repeat each other's matmuls: ", NULL);
}

// Ten heads divide by five and the hidden layer's features do not: a part of the work can be shared.
static void where_rules_help_a_little_it_is_said_how_much(void **state)
{
    static const char *const text =
        "name: t\nmodel: {program: gpt2, layers: 2, embed: 24, heads: 10, head_dim: 4, seq: 24, "
        "vocab: "
        "25, vocab_multiple: 1}\ndata: " TOKENS "\ntrain: {steps: 1}\nmesh: {x: 5}\n"
        "sharding: {rules: {vocab: x, heads: ~}}\n";
    char says[200];
    (void)state;
    double then = find_utilisation(text, "sharding.rules.heads=x");
    assert_true(then > 1.05 * find_utilisation(text, NULL) && then < 0.75);
    snprintf(says, sizeof says,
             "no rules alone end that, and the best of them, sharding.rules.heads=x, give %.3g",
             then);
    expect_finding(text, FINDING_REDUNDANT, says, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fix_of_repeated_work_ends_it),
        cmocka_unit_test(experts_alone_are_reported_however_little_that_wastes),
        cmocka_unit_test(where_the_batch_cannot_have_their_axis_it_is_said_why),
        cmocka_unit_test(a_multiple_of_a_ruled_size_is_named_with_its_line),
        cmocka_unit_test(a_size_of_most_parameters_without_a_rule_is_named),
        cmocka_unit_test(where_no_rules_help_no_fix_is_suggested),
        cmocka_unit_test(where_rules_help_a_little_it_is_said_how_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
