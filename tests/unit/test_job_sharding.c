// SPDX-License-Identifier: Apache-2.0
// The sharding section: what it may say, what prints reads back, and what is refused with its line.
#include "tests/unit/job_case.h"

static void rules_given_replace_their_keys_only(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "sharding: {rules: {mlp: [x, tp], embed: ~, norm: dp}}\n");
    const struct job_sharding *s = &c.job.sharding;
    assert_int_equal(job_rule_find(s, "mlp")->axes.n, 2);
    assert_string_equal(job_rule_find(s, "mlp")->axes.name[0], "x");
    assert_int_equal(job_rule_find(s, "mlp")->line, 5);
    assert_int_equal(job_rule_find(s, "embed")->axes.n, 0);
    assert_int_equal(job_rule_find(s, "batch")->axes.n, 3);
    assert_string_equal(job_rule_find(s, "batch")->axes.name[1], "fsdp");
    assert_int_equal(job_rule_find(s, "batch")->line, 0);
    assert_string_equal(job_rule_find(s, "norm")->axes.name[0], "dp");
    assert_null(job_rule_find(s, "classes"));
    case_clear(&c);
}

static void specs_have_nulls_axes_rules_and_lists(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "sharding:\n"
                         "  params:\n"
                         "    - {match: \"embed/*\", min: [10000], spec: [tp]}\n"
                         "    - {match: \"*/weight\", spec: [~, [x, tp], null]}\n"
                         "  activations: {act_seq: [batch, [seq, tp]]}\n"
                         "  gather: []\n");
    const struct job_sharding *s = &c.job.sharding;
    assert_int_equal(s->n_params, 2);
    assert_int_equal(s->params[0].min.n, 1);
    assert_int_equal(((const int64_t *)s->params[0].min.items)[0], 10000);
    assert_int_equal(s->params[1].spec.n, 3);
    assert_int_equal(s->params[1].spec.dim[0].n, 0);
    assert_int_equal(s->params[1].spec.dim[1].n, 2);
    assert_int_equal(s->params[1].spec.line, 8);
    assert_string_equal(s->points[0].point, "act_seq");
    assert_string_equal(s->points[0].spec.dim[1].name[1], "tp");
    assert_int_equal(s->gather.n, 0);
    case_clear(&c);
}

static void state_is_cut_by_axes_or_by_specs(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "sharding:\n"
                         "  grads: dp\n"
                         "  optimizer:\n"
                         "    - {match: \"embed/*\", min: [100], spec: [[tp, dp]]}\n");
    const struct job_sharding *s = &c.job.sharding;
    assert_int_equal(s->grads.axes.n, 1);
    assert_string_equal(s->grads.axes.name[0], "dp");
    assert_int_equal(s->grads.line, 6);
    assert_int_equal(s->grads.n_params + s->optimizer.axes.n, 0);
    assert_int_equal(s->optimizer.n_params, 1);
    assert_string_equal(s->optimizer.params[0].spec.dim[0].name[1], "dp");
    assert_int_equal(s->optimizer.params[0].spec.line, 8);
    case_clear(&c);
}

// The resolved text of a job reads back to itself.
static void what_prints_reads_back(void **state)
{
    static const char *const texts[] = {
        "sharding: {rules: {batch: [y, \"null\"], mlp: ~}}\nmesh: {y: 2, \"null\": 2}\n",
        ("sharding: {params: [{match: \"a b*\", spec: []}, {match: c, min: [0, 7], spec: [[], "
         "n]}]}\n"
         "mesh: {n: 2}\n"),
        "sharding: {activations: {act_ids: [[x, y]], act_logits: [batch, ~]}, gather: [x, y]}\n"
        "mesh: {x: 2, y: 3}\n",
        "sharding: {grads: [{match: \"*\", min: [1], spec: [~, dp]}], optimizer: [dp, fsdp]}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct job_case c, again;
        char text[512];
        snprintf(text, sizeof text, "%s%s", VALID, texts[i]);
        case_valid(&c, text);
        case_valid(&again, buf_str(&c.text));
        assert_string_equal(buf_str(&again.text), buf_str(&c.text));
        case_clear(&again);
        case_clear(&c);
    }
}

static void wrong_forms_are_reported_with_their_place(void **state)
{
    (void)state;
    expect_errors(VALID "sharding: {rules: {mlpp: tp}}\n",
                  "job.yaml:5:20: sharding.rules.mlpp: unknown key: did you mean mlp?\n");
    expect_errors(VALID "sharding: {rules: [tp]}\n",
                  "job.yaml:5:19: sharding.rules: must be a map such as {mlp: tp}, not a list\n");
    expect_errors(VALID "sharding: {rules: {mlp: {a: b}}}\n",
                  "job.yaml:5:25: sharding.rules.mlp: must be an axis, a list of axes or null, not "
                  "a map\n");
    expect_errors(VALID "sharding: {params: [{match: x}, {spec: [tp]}, 3]}\n",
                  "job.yaml:5:21: sharding.params[0]: must have match and spec: which parameters, "
                  "and how they are cut\n"
                  "job.yaml:5:33: sharding.params[1]: must have match and spec: which parameters, "
                  "and how they are cut\n"
                  "job.yaml:5:47: sharding.params[2]: must be a map such as {match: \"embed/*\", "
                  "spec: [tp]}, not a single value\n");
    expect_errors(VALID "sharding: {params: [{match: x, spec: [[[tp]]]}]}\n",
                  "job.yaml:5:40: sharding.params[0].spec[0][0]: must be text, not a list\n");
    expect_errors(
        VALID "sharding: {activations: {act_sq: [tp]}}\n",
        "job.yaml:5:26: sharding.activations.act_sq: unknown key: did you mean act_seq?\n");
    expect_errors(
        VALID "sharding: {activations: {act_seq: [~, ~, ~, ~, ~, ~, ~, ~, tp]}}\n",
        "job.yaml:5:35: sharding.activations.act_seq: has 9 entries: a tensor has at most "
        "8 dimensions\n");
    expect_errors(
        VALID "sharding: {gather: fsdp}\n",
        "job.yaml:5:20: sharding.gather: must be a list such as [fsdp], not a single value\n");
}

static void wrong_cuts_of_state_are_reported_with_their_place(void **state)
{
    (void)state;
    expect_errors(VALID "sharding: {optimizer: {dp: 2}}\n",
                  "job.yaml:5:23: sharding.optimizer: must be a list of axes such as [dp], or of "
                  "specs such as [{match: \"embed/*\", spec: [dp]}], not a map\n");
    expect_errors(VALID "sharding: {optimizer: [dp, {match: x, spec: [dp]}]}\n",
                  "job.yaml:5:28: sharding.optimizer[1]: must be text, not a map\n");
    expect_errors(VALID "sharding: {grads: [{spec: [dp]}]}\n",
                  "job.yaml:5:20: sharding.grads[0]: must have match and spec: which parameters, "
                  "and how they are cut\n");
    expect_errors(VALID "sharding: {grads: [a, b, c, d, e, f, g, h, i]}\n",
                  "job.yaml:5:19: sharding.grads: has 9 items: it may have 8\n");
    expect_errors(VALID "sharding: {optimiser: [dp]}\n",
                  "job.yaml:5:12: sharding.optimiser: unknown key: did you mean "
                  "sharding.optimizer?\n");
}

static void a_name_stands_for_whichever_of_its_axis_the_mesh_has(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "mesh: {host: 1, model: 2, data: 2}\n");
    const struct job_mesh *m = &c.job.mesh;
    assert_int_equal(job_axis_find(m, "host"), 0);
    assert_int_equal(job_axis_find(m, "tp"), 1);
    assert_int_equal(job_axis_find(m, "tensor"), 1);
    assert_int_equal(job_axis_find(m, "dp"), 2);
    assert_int_equal(job_axis_find(m, "fsdp"), -1);
    assert_int_equal(job_axis_find(m, "gpu"), -2);
    case_clear(&c);
}

static void the_batch_divides_by_all_the_axes_that_cut_it(void **state)
{
    (void)state;
    expect_errors(VALID "mesh: {dp: 2, fsdp: 4, tp: 5}\n",
                  "job.yaml:3:46: data.batch: 12 is not a multiple of 8 (8 data-parallel devices x "
                  "1 microbatches): try 8 or 16\n");
    expect_errors(VALID "mesh: {dp: 2, fsdp: 4, tp: 5}\nsharding: {rules: {batch: [fsdp, fsdp]}}\n",
                  "");
    expect_errors(VALID "mesh: {x: 5}\nsharding: {activations: {act_ids: [x]}}\n",
                  "job.yaml:3:46: data.batch: 12 is not a multiple of 5 (5 data-parallel devices x "
                  "1 microbatches): try 10 or 15\n");
    expect_errors(VALID "mesh: {dp: 2, fsdp: -1}\nresources: {devices: 6}\n", "");
    expect_errors(VALID "mesh: {dp: 4, fsdp: -1}\nresources: {devices: 6}\n",
                  "job.yaml:5:7: mesh: {dp: 4, fsdp: -1} leaves nothing whole: resources.devices, "
                  "6, is not a multiple of 4\n");
    expect_errors(VALID "mesh: {x: 65536, y: 65536}\n",
                  "job.yaml:5:7: mesh: {x: 65536, y: 65536} has over 65536 devices\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_given_replace_their_keys_only),
        cmocka_unit_test(specs_have_nulls_axes_rules_and_lists),
        cmocka_unit_test(state_is_cut_by_axes_or_by_specs),
        cmocka_unit_test(what_prints_reads_back),
        cmocka_unit_test(wrong_forms_are_reported_with_their_place),
        cmocka_unit_test(wrong_cuts_of_state_are_reported_with_their_place),
        cmocka_unit_test(a_name_stands_for_whichever_of_its_axis_the_mesh_has),
        cmocka_unit_test(the_batch_divides_by_all_the_axes_that_cut_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
