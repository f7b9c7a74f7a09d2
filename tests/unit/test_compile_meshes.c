// SPDX-License-Identifier: Apache-2.0
// Every model over every mesh is the model of one device (mesh_case.h says in what). What is dropped
// and which noise is drawn shows in all of it.
//
// Besides the table random settings: those may be refused, and hold if they are not. With
// WEFT_LATE=1 all run on the device that keeps its memory and its time to itself.
//
//   test_compile_meshes                    a fixed part of both; WEFT_LONG=1 all of it
//   test_compile_meshes MODEL [SETTING]    those whose words are in the model's name and the mesh
#include "tests/unit/mesh_case.h"

static const char *only_model, *only_mesh;
static struct reference references[MODELS][2];

static int forget_all(void **state)
{
    (void)state;
    forget_references(references[0], MODELS * 2);
    return 0;
}

static void every_model_on_every_mesh_is_the_model_of_one_device(void **state)
{
    (void)state;
    bool all = getenv("WEFT_LONG") || only_model;
    int bad = 0, ran = 0;
    for (int m = 0; m < MODELS; m++)
        for (int s = 0; s < SETTINGS; s++) {
            if (!(settings[s].models >> m & 1) || (!all && (s + m) % 3) ||
                (only_model && !strstr(models[m].name, only_model)) ||
                (only_mesh && !strstr(settings[s].mesh, only_mesh)) || is_spared())
                continue;
            bad += try_setting(&models[m], references[m], &settings[s]) != HOLDS;
            ran++;
        }
    if (bad)
        fail_msg("%d of %d fail", bad, ran);
    assert_true(ran > 0);
}

// ---- settings that nobody thought of -----------------------------------------------------------

struct random_setting {
    struct setting setting;
    char mesh[100], sharding[300];
};

static int pick(uint32_t seed, uint32_t what, int n)
{
    struct rand_site site = {.seed = 17, .stream = what};
    return (int)(rand_word(&site, seed) % (uint32_t)n);
}

// Two or three axes of up to 8 devices, in any order.
static void random_mesh(char *to, size_t size, uint32_t seed)
{
    static const char *const axes[] = {"dp", "fsdp", "tp", "cp", "pp"};
    int ranks = 1, from = pick(seed, 1, 5), by = 1 + pick(seed, 2, 4), n = 2 + pick(seed, 3, 2);
    size_t len = 0;
    to[0] = 0;
    for (int k = 0; k < n; k++) {
        int way = k < n - 1 ? 2 + pick(seed, 4 + (uint32_t)k, 3) : 8 / ranks;
        if (ranks * way > 8 || way == 1)
            way = 2;
        if (ranks * way > 8)
            break;
        ranks *= way;
        len += (size_t)snprintf(to + len, size - len, "%s%s: %d", k ? ", " : "",
                                axes[(from + k * by) % 5], way);
    }
}

static int random_setting(struct random_setting *r, uint32_t seed)
{
    static const char *const remats[] = {"", ", remat: block", ", remat: full"};
    static const char *const finer[] = {"",
                                        "",
                                        "optimizer: [dp], ",
                                        "grads: [dp], optimizer: [dp], ",
                                        "optimizer: [dp, tp, cp], ",
                                        "grads: [tp], optimizer: [fsdp], "};
    static const char *const points[] = {
        "", "", SP, "activations: {act_seq: [batch, seq, tp]}", "rules: {vocab: ~}", WEIGHTS};
    random_mesh(r->mesh, sizeof r->mesh, seed);
    snprintf(r->sharding, sizeof r->sharding, "%s%s", finer[pick(seed, 8, 6)],
             points[pick(seed, 9, 6)]);
    r->setting = (struct setting){.mesh = r->mesh,
                                  .microbatches = 1 + pick(seed, 10, 4),
                                  .train = remats[pick(seed, 11, 3)],
                                  .sharding = r->sharding,
                                  .more = pick(seed, 12, 3) ? "" : "pipeline: {schedule: gpipe}\n"};
    int model = pick(seed, 13, MODELS + 4); // decoders twice as often
    return model < MODELS ? model : model - 4;
}

static void what_no_table_names_is_refused_or_the_model_of_one_device(void **state)
{
    (void)state;
    const uint32_t count = (uint32_t)how_many(40, 600);
    int verdicts[3] = {0};
    for (uint32_t seed = 1; seed <= count && !only_model; seed++) {
        struct random_setting r;
        int model = random_setting(&r, seed);
        verdicts[try_setting(&models[model], references[model], &r.setting)]++;
    }
    if (verdicts[FAILS])
        fail_msg("%d of %u fail", verdicts[FAILS], count);
    if (!only_model && verdicts[HOLDS] * 4 < (int)count)
        fail_msg("only %d of %u settings were taken", verdicts[HOLDS], count);
}

int main(int argc, char **argv)
{
    only_model = argc > 1 ? argv[1] : NULL;
    only_mesh = argc > 2 ? argv[2] : NULL;
    only_late = getenv("WEFT_LATE") != NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_on_every_mesh_is_the_model_of_one_device),
        cmocka_unit_test(what_no_table_names_is_refused_or_the_model_of_one_device),
    };
    return cmocka_run_group_tests(tests, make_data, forget_all);
}
