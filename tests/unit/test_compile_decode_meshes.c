// SPDX-License-Identifier: Apache-2.0
// Decoding with cached keys on meshes: caches lie where the attention that reads them works, nothing of
// them moves, and on every mesh the logits of any call are those of a forward pass over the whole text on
// one device.
#include "tests/unit/decode_case.h"

enum { ROWS = 4 };

static const struct case_of {
    const char *mesh, *sharding;
} cases[] = {
    {"dp: 2", ""},
    {"dp: 4", ""},
    {"fsdp: 2", ""},
    {"fsdp: 4", ""},
    {"tp: 2", ""},
    {"tp: 4", ""},
    {"dp: 2, tp: 2", ""},
    {"cp: 2", ""},
    {"cp: 2, tp: 2", ""},
    {"pp: 2", ""},
    {"pp: 2, tp: 2", ""},
    {"dp: 2, pp: 2, tp: 2", ""},
    {"fsdp: 2, pp: 2", ""},
    {"tp: 2, fsdp: 2", ""},
    {"dp: 2, fsdp: 2, tp: 2", ""},
    {"fsdp: 2, tp: 4", ""},
    {"x: 2, y: 2", "rules: {batch: x, heads: y, mlp: y, vocab: y}"},
    {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
    {"dp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
    {"data: 2, model: 2", "activations: {act_seq: [batch, ~, model]}"},
    {"dp: 2, cp: 2", "activations: {act_att: [batch, seq]}"},
    {"tp: 2", "activations: {act_att: [batch]}"},
    {"dp: 2", "params: [{match: 'embed/tokens', spec: [~, dp]}], gather: [dp]"},
    {"tp: 3", "rules: {heads: ~, mlp: tp, vocab: ~}"},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *sharded(const struct case_of *c, const char *more)
{
    static char text[300];
    snprintf(text, sizeof text, "sharding: {%s}\n%s", c->sharding, more);
    return text;
}

// Returns whether the job can be on that mesh.
static bool check_case(int k, const struct case_of *c, uint64_t seed)
{
    struct fixture f;
    char what[400], alone[4000];
    const int64_t rows = 1 + (int64_t)((seed * 5) % 7);
    snprintf(what, sizeof what, "{%s} {%s} %s", c->mesh, c->sharding, models[k]);
    snprintf(alone, sizeof alone, "%s", job_on(sized(models[k]), "dp: 1", ROWS, ""));
    int rc = compile_only(&f, job_on(sized(models[k]), c->mesh, ROWS, sharded(c, "")), PROGRAM_FILL,
                          rows, 0);
    if (rc && rc != ERR_INVALID)
        fail_msg("%s: %s", what, f.e.text);
    if (!rc)
        check_decoding(alone, &f.c, seed % 3 == 0, seed, set_params, what);
    fixture_clear(&f);
    return !rc;
}

// A third of models × meshes; with WEFT_LONG all.
static void every_mesh_gives_the_logits_of_a_whole_forward_pass(void **state)
{
    const int each = getenv("WEFT_LONG") ? 1 : 3;
    int tried = 0, held = 0;
    (void)state;
    for (int i = 0; i < MODELS * CASES; i += each) {
        held += check_case(i % MODELS, &cases[i / MODELS], (uint64_t)i);
        tried++;
    }
    assert_true(held * 10 >= tried * 9); // the others' sizes do not divide
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mesh_gives_the_logits_of_a_whole_forward_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
