// SPDX-License-Identifier: Apache-2.0
// Findings: what cannot be is refused by name, and every fix that is suggested makes its finding go
// away. And the specs of the sharding section on tensors of the source guides' sizes.
#include <stdio.h>

#include "common/compile/shard/sharding.h"
#include "tests/unit/compile_case.h"

// Two hidden layers and a head, on 2 × 2 devices.
#define JOB                                                           \
    "name: t\n"                                                       \
    "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 5}\n" \
    "data: {train: {images: i, labels: l}, batch: 16}\n"              \
    "train: {steps: 1, microbatches: 2}\n"
#define SQUARE "mesh: {dp: 2, tp: 2}\n"

static void check_fix(const char *text, enum finding_code code, const char *tensor, const char *fix)
{
    struct fixture f;
    (void)compile_with(&f, text, &fix, 1);
    if (find_finding(&f, code, tensor))
        fail_msg("-s '%s' leaves %s: %s", fix, finding_name(code),
                 find_finding(&f, code, tensor)->message);
    fixture_clear(&f);
}

struct expected {
    const char *text;
    enum finding_code code;
    const char *tensor, *says;
    int fixes;
};

static void check_case(const struct expected *x)
{
    struct fixture f;
    char fix[1000];
    int rc = compile_with(&f, x->text, NULL, 0), fixes = 0;
    const struct finding *one = find_finding(&f, x->code, x->tensor);
    if (!one) {
        fail_msg("no %s on %s", finding_name(x->code), x->tensor ? x->tensor : "anything");
        return;
    }
    if (!strstr(one->message, x->says))
        fail_msg("%s", one->message);
    if (finding_is_error(x->code) && !strstr(one->message, "(line "))
        fail_msg("names no line of the job: %s", one->message);
    assert_int_equal(rc, finding_is_error(x->code) ? ERR_INVALID : 0);
    assert_true(f.c.whole);
    for (const char *at = one->fix; at; fixes++) {
        const char *end = strstr(at, " or ");
        snprintf(fix, sizeof fix, "%.*s", end ? (int)(end - at) : (int)strlen(at), at);
        check_fix(x->text, x->code, x->tensor, fix);
        at = end ? end + 4 : NULL;
    }
    assert_int_equal(fixes, x->fixes);
    fixture_clear(&f);
}

static void every_finding_is_named_and_its_fix_works(void **state)
{
    static const struct expected cases[] = {
        {JOB SQUARE "sharding: {rules: {mlp: [tp, ttp]}}\n", FINDING_AXIS_UNKNOWN,
         "sharding.rules.mlp", "(line 6): 'ttp' is no axis of the mesh {dp: 2, tp: 2}", 1},
        {JOB SQUARE "sharding: {params: [{match: layers/1/weight, spec: [x, tp]}]}\n",
         FINDING_AXIS_UNKNOWN, "layers/1/weight", "'x' is no axis", 1},
        {JOB SQUARE "sharding: {gather: [y]}\n", FINDING_AXIS_UNKNOWN, "sharding.gather",
         "'y' is no axis", 1},
        {JOB SQUARE "sharding: {rules: {embed: dp}, gather: [y]}\n", FINDING_AXIS_UNKNOWN,
         "sharding.gather", "'y' is no axis", 1},
        {JOB SQUARE "sharding: {params: [{match: layers/0/weight, spec: [tp, [tp]]}]}\n",
         FINDING_AXIS_TWICE, "layers/0/weight", "axis tp cuts two dimensions", 1},
        {JOB SQUARE "sharding: {rules: {batch: [dp, dp]}}\n", FINDING_AXIS_TWICE,
         "sharding.rules.batch", "(line 6): 'dp' stands twice in the list", 1},
        {JOB SQUARE "sharding: {rules: {mlp: [tp, tp, tp]}}\n", FINDING_AXIS_TWICE,
         "sharding.rules.mlp", "'tp' stands twice", 1},
        {JOB SQUARE "sharding: {optimizer: [dp, dp]}\n", FINDING_AXIS_TWICE, "sharding.optimizer",
         "(line 6): 'dp' stands twice in the list", 1},
        {JOB SQUARE "sharding: {grads: [batch, batch]}\n", FINDING_AXIS_TWICE, "sharding.grads",
         "'batch' stands twice", 1},
        {JOB SQUARE "sharding: {gather: [dp, tp, dp]}\n", FINDING_AXIS_TWICE, "sharding.gather",
         "'dp' stands twice", 1},
        {JOB SQUARE "sharding: {activations: {act_seq: [batch, batch]}}\n", FINDING_AXIS_TWICE,
         "act_seq", "axis dp cuts two dimensions", 1},
        {JOB SQUARE "sharding: {params: [{match: layers/*, spec: [~, tp]}]}\n",
         FINDING_SPEC_TOO_LONG, "layers/1/bias", "has 2 entries, the tensor 1 dimensions", 1},
        {JOB SQUARE "sharding: {activations: {act_hidden: [batch, tp, dp]}}\n",
         FINDING_SPEC_TOO_LONG, "act_hidden", "has 3 entries, the tensor 2 dimensions", 1},
        {JOB "mesh: {tp: 3}\n", FINDING_INDIVISIBLE, "layers/0/weight",
         "dimension mlp of size 16 does not divide by 3 (tp): try 15 or 18 (line 5)", 1},
        {JOB "mesh: {fsdp: 2, x: 2}\nsharding: {rules: {embed: [fsdp, x], mlp: ~, batch: fsdp}, "
             "params: [{match: layers/2/weight, spec: [~, x]}]}\n",
         FINDING_INDIVISIBLE, "layers/2/weight",
         "dimension classes of size 5 does not divide by 2 (x): try 4 or 6 (line 6)", 1},
        {JOB "mesh: {tp: 2}\nsharding: {activations: {act_logits: [~, tp]}}\n", FINDING_INDIVISIBLE,
         "act_logits", "dimension classes of size 5", 1},
        {JOB SQUARE "sharding: {rules: {embed: dp}}\n", FINDING_WEIGHT_ON_BATCH_AXIS,
         "layers/1/weight", "is cut on dp, which cuts the batch", 2},
        {JOB SQUARE "sharding: {params: [{match: \"*/0/weight\", spec: [dp, tp]}]}\n",
         FINDING_WEIGHT_ON_BATCH_AXIS, "layers/0/weight", "is cut on dp", 2},
        {JOB SQUARE "sharding: {activations: {act_hidden: [~, tp]}}\n", FINDING_BATCH_DROPPED,
         "act_hidden", "(line 6) leaves out dp", 1},
        {JOB SQUARE "sharding: {activations: {act_hidden: [~, [tp, dp]]}}\n", FINDING_BATCH_DROPPED,
         "act_hidden", "leaves out dp", 1},
        {JOB "mesh: {dp: 2, spare: 2}\n", FINDING_UNUSED_AXIS, NULL,
         "axis spare of the mesh cuts nothing", 1},
        {JOB SQUARE "sharding: {params: [{match: \"layer/*\", spec: [tp]}]}\n", FINDING_NO_MATCH,
         "layer/*", "no parameter matches", 1},
        {JOB SQUARE "sharding: {params: [{match: \"layers/*\", min: [1000], spec: [tp]}]}\n",
         FINDING_NO_MATCH, "layers/*", "with these sizes or more", 1},
        {JOB SQUARE "sharding: {optimizer: [dp, zz]}\n", FINDING_AXIS_UNKNOWN, "sharding.optimizer",
         "(line 6): 'zz' is no axis", 1},
        {JOB SQUARE "sharding: {optimizer: [{match: \"*/0/weight\", spec: [dp, [tp, dp]]}]}\n",
         FINDING_AXIS_TWICE, "*/0/weight", "axis dp cuts two dimensions", 1},
        {JOB SQUARE "sharding: {optimizer: [{match: \"layers/*\", spec: [~, tp]}]}\n",
         FINDING_SPEC_TOO_LONG, "layers/2/bias",
         "the spec in sharding.optimizer (line 6) has 2 entries, the tensor 1", 1},
        {JOB SQUARE "sharding: {optimizer: [{match: \"*/2/bias\", spec: [dp]}]}\n",
         FINDING_INDIVISIBLE, "layers/2/bias",
         "dimension classes of size 5 does not divide by 2, as sharding.optimizer (line 6) asks "
         "with dp: try 4 or 6",
         1},
        {JOB SQUARE "sharding: {grads: [{match: weights, spec: [dp]}]}\n", FINDING_NO_MATCH,
         "weights", "no parameter matches", 1},
        {JOB SQUARE "optimizer: {groups: [{match: \"*/bias\", lr_scale: 2}, {match: biases, "
                    "freeze: true}]}\n",
         FINDING_NO_MATCH, "biases", "biases (line 6): no parameter matches this group", 1},
        // tp comes first: the parameter's own cut cannot be left out, nor follow.
        {JOB SQUARE "sharding: {optimizer: [{match: \"*/0/weight\", spec: [dp]}]}\n",
         FINDING_NOT_A_REFINEMENT, "layers/0/weight",
         "sharding.optimizer (line 6) cuts [dp, ~], which does not continue the gradient's [~, "
         "tp]: try [dp, tp]",
         1},
        {JOB SQUARE "sharding: {optimizer: [{match: \"*/0/weight\", spec: [~, [dp, tp]]}]}\n",
         FINDING_NOT_A_REFINEMENT, "layers/0/weight", "try [~, [tp, dp]]", 1},
        {JOB SQUARE "sharding: {grads: [{match: \"*/1/weight\", spec: [dp, tp]}]}\n",
         FINDING_NOT_A_REFINEMENT, "layers/1/weight",
         "sharding.grads (line 6) cuts [dp, tp], which does not continue the parameter's [tp, ~]",
         1},
        // Gradients cut finer than their optimiser.
        {JOB SQUARE "sharding: {grads: [dp]}\n", FINDING_NOT_A_REFINEMENT, "sharding.optimizer",
         "does not continue the gradient's", 1},
        {JOB SQUARE "sharding: {grads: [{match: \"*/0/weight\", spec: [dp, tp]}]}\n",
         FINDING_NOT_A_REFINEMENT, "sharding.optimizer", "does not continue the gradient's", 1},
        {JOB SQUARE "sharding: {grads: [dp], optimizer: [{match: \"*/0/weight\", spec: [dp, "
                    "tp]}]}\n",
         FINDING_NOT_A_REFINEMENT, "layers/1/weight", "does not continue the gradient's", 1},
        {"name: t\nmodel: {program: mlp, inputs: 8, hidden: [8, 8], classes: 64}\n"
         "data: {train: {images: i, labels: l}, batch: 16}\ntrain: {steps: 1}\nmesh: {tp: 2}\n",
         FINDING_REDUNDANT, NULL, "devices along tp repeat each other's matmuls", 1},
        {"name: t\nmodel: {program: mlp, inputs: 8, hidden: [8, 8], classes: 64}\n"
         "data: {train: {images: i, labels: l}, batch: 16}\ntrain: {steps: 1}\n"
         "mesh: {fsdp: 2, tp: 2}\n",
         FINDING_REDUNDANT, NULL, "devices along tp", 1},
        {JOB "mesh: {pp: 2, tp: 2}\nsharding: {rules: {mlp: [tp, pp]}}\n", FINDING_STAGE_AXIS,
         "sharding.rules.mlp", "(line 6): axis pp holds the stages", 1},
        {JOB "mesh: {pipe: 2}\nsharding: {params: [{match: layers/0/weight, spec: [~, pp]}]}\n",
         FINDING_STAGE_AXIS, "layers/0/weight", "(line 6): axis pipe holds the stages", 1},
        {JOB "mesh: {dp: 2, pp: 2}\nsharding: {activations: {act_seq: [batch, pp]}}\n",
         FINDING_STAGE_AXIS, "act_seq", "axis pp holds the stages", 1},
        {"name: t\nmodel: {program: mlp, inputs: 8, hidden: [16, 8, 16], classes: 5}\n"
         "data: {train: {images: i, labels: l}, batch: 16}\ntrain: {steps: 1, microbatches: 2}\n"
         "mesh: {pp: 2}\npipeline: {stages: [1, 3]}\n",
         FINDING_STAGE_IMBALANCE, NULL, "stage 1 has 3 layers where 2 are enough", 1},
        {JOB "mesh: {pp: 3}\n", FINDING_FEW_MICROBATCHES, NULL, "2 microbatches for 3 stages", 1},
        {"name: t\nmodel: {program: ./tests/unit/programs/ordered.model}\nmesh: {cp: 2}\n"
         "data: {format: tokens, train: {tokens: t}, batch: 4}\ntrain: {steps: 1}\n",
         FINDING_SEQUENCE_ORDER, NULL,
         "ordered.model:14: add over seq takes positions by their order in memory, so the sequence "
         "is cut in order on cp",
         0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

// What coordinator and ranks read was written by no person: its lines would send one astray.
static void the_resolved_form_has_no_lines_to_name(void **state)
{
    static const char *const texts[] = {
        JOB "mesh: {dp: 2, tp: 3}\n",
        JOB SQUARE "sharding: {rules: {mlp: ttp}}\n",
        JOB SQUARE "sharding: {params: [{match: layers/0/weight, spec: [zz, ~]}]}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct job_errors errs = {0};
        struct fixture f = {0};
        assert_int_equal(job_parse(&f.a, &weft_schema, NULL, NULL, texts[i], strlen(texts[i]), NULL,
                                   0, &f.job, &errs),
                         0);
        assert_int_not_equal(compile_again(&f), 0);
        assert_null(strstr(f.e.text, "line"));
        fixture_clear(&f);
        (void)compile_with(&f, texts[i], NULL, 0);
        assert_non_null(strstr(f.e.text, "line"));
        fixture_clear(&f);
    }
}

static void a_weight_on_a_batch_axis_costs_what_its_gathers_send(void **state)
{
    (void)state;
    struct fixture f;
    (void)compile_with(&f, JOB "mesh: {dp: 2}\nsharding: {rules: {embed: dp}}\n", NULL, 0);
    // 16 × 8 floats gathered over two in the forward and in the backward of two microbatches; the
    // first layer's backward reads no weight.
    assert_int_equal(find_finding(&f, FINDING_WEIGHT_ON_BATCH_AXIS, "layers/1/weight")->waste,
                     16 * 8 * 4 / 2 * 2 * 2);
    assert_int_equal(find_finding(&f, FINDING_WEIGHT_ON_BATCH_AXIS, "layers/0/weight")->waste,
                     16 * 8 * 4 / 2 * 2);
    fixture_clear(&f);
}

static void batch_and_weights_on_one_axis_of_eight_by_eight_use_an_eighth(void **state)
{
    (void)state;
    struct fixture f;
    int rc = compile_with(&f,
                          "name: t\nmodel: {program: mlp, inputs: 64, hidden: [64], classes: 8}\n"
                          "data: {train: {images: i, labels: l}, batch: 64}\ntrain: {steps: 1}\n"
                          "mesh: {x: 8, y: 8}\n"
                          "sharding: {rules: {batch: x, embed: x}, gather: [x]}\n",
                          NULL, 0);
    assert_int_equal(rc, ERR_INVALID);
    const struct finding *one = find_finding(&f, FINDING_REDUNDANT, NULL);
    assert_non_null(one);
    assert_int_equal(one->axes, 1 << 1);
    assert_true(one->utilisation == 0.125);
    assert_non_null(find_finding(&f, FINDING_UNUSED_AXIS, NULL));
    fixture_clear(&f);
}

static void a_sound_sharding_has_no_findings(void **state)
{
    static const char *const texts[] = {
        JOB "mesh: {dp: 4}\n",
        JOB "mesh: {fsdp: 2}\n",
        JOB "mesh: {data: 2, model: 2}\n",
        JOB "mesh: {x: 2, y: 2}\nsharding: {rules: {batch: x, mlp: y}}\n",
        JOB SQUARE "sharding: {activations: {act_seq: [batch, tp]}}\n",
        JOB "mesh: {pp: 2}\n", // three layers: one stage must have two
        JOB "mesh: {dp: 2, stage: 2, tp: 2}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct fixture f;
        int rc = compile_with(&f, texts[i], NULL, 0);
        if (rc || f.found.n)
            fail_msg("%s: %s", texts[i], f.found.n ? f.found.items[0].message : f.e.text);
        fixture_clear(&f);
    }
}

// ---- specs on tensors of the guides' sizes -----------------------------------------------------

static void expect_shard(const char *sharding, const char *name, struct shape whole,
                         const enum dim *dims, struct shape want)
{
    char text[1000];
    struct fixture f;
    struct sharding s;
    struct mesh m = {0};
    snprintf(
        text, sizeof text,
        "name: t\nmodel: {program: mlp, inputs: 8, hidden: [8], classes: 2}\ntrain: {steps: 1}\n"
        "data: {train: {images: i, labels: l}, batch: 256}\n%s",
        sharding);
    parse_with(&f, text, NULL, 0);
    m.n = f.job.mesh.n;
    for (int i = 0; i < m.n; i++) {
        snprintf(m.axis[i].name, sizeof m.axis[i].name, "%s", f.job.mesh.axis[i].name);
        m.axis[i].size = (int)f.job.mesh.axis[i].size;
    }
    struct dims names;
    dims_init(&names, &f.a);
    sharding_resolve(&s, &f.job, &m, &names, &f.a);
    struct value v = {.name = name, .kind = VALUE_PARAM, .shape = whole};
    memcpy(v.dims, dims, sizeof *dims * (size_t)whole.n);
    struct spec spec = sharding_spec(&s, &m, &v);
    struct shape local = spec_local(&spec, &m, &whole);
    assert_int_equal(s.facts.n, 0);
    assert_true(shape_equal(&local, &want));
    fixture_clear(&f);
}

static void specs_of_the_guides_give_their_shards(void **state)
{
    static const enum dim none[4] = {DIM_NONE}, table[2] = {DIM_VOCAB, DIM_EMBED};
    (void)state;
    expect_shard("mesh: {x: 2, y: 4}\nsharding: {params: [{match: a, spec: [~, x, y]}]}\n", "a",
                 (struct shape){4, {32, 64, 64, 128}}, none, (struct shape){4, {32, 32, 16, 128}});
    expect_shard("mesh: {data: 8, model: 8}\n"
                 "sharding: {params: [{match: a, spec: [data, ~, model]}]}\n",
                 "a", (struct shape){3, {64, 2048, 12288}}, none,
                 (struct shape){3, {8, 2048, 1536}});
    expect_shard("mesh: {host: 2, gpu: 8}\nsharding: {params: [{match: a, spec: [gpu, ~]}]}\n", "a",
                 (struct shape){2, {256, 192}}, none, (struct shape){2, {32, 192}});
    // By name and size: embeddings of over 10,000 rows and kernels of over 1,000 columns.
    static const char *const by_size =
        "mesh: {dp: 2, model: 4}\n"
        "sharding: {rules: {vocab: ~, mlp: ~}, params: [\n"
        "  {match: \"embed/*\", min: [10000], spec: [model]},\n"
        "  {match: \"*/weight\", min: [0, 1000], spec: [~, model]}]}\n";
    expect_shard(by_size, "embed/tokens", (struct shape){2, {50000, 64}}, table,
                 (struct shape){2, {12500, 64}});
    expect_shard(by_size, "embed/positions", (struct shape){2, {1024, 64}}, none,
                 (struct shape){2, {1024, 64}});
    expect_shard(by_size, "layers/0/weight", (struct shape){2, {64, 2000}}, none,
                 (struct shape){2, {64, 500}});
    expect_shard(by_size, "layers/1/weight", (struct shape){2, {2000, 64}}, none,
                 (struct shape){2, {2000, 64}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_finding_is_named_and_its_fix_works),
        cmocka_unit_test(the_resolved_form_has_no_lines_to_name),
        cmocka_unit_test(a_weight_on_a_batch_axis_costs_what_its_gathers_send),
        cmocka_unit_test(batch_and_weights_on_one_axis_of_eight_by_eight_use_an_eighth),
        cmocka_unit_test(a_sound_sharding_has_no_findings),
        cmocka_unit_test(specs_of_the_guides_give_their_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
