// SPDX-License-Identifier: Apache-2.0
// Every model over every mesh: real programs with the CPU backend, a thread a rank, on the
// communicator that checks order and deadlock. Two steps of training are those of one device in
// double precision with one microbatch and nothing remade: loss and norm, momenta (which are the
// gradients of both steps), parameters; and so is an evaluation. What is dropped and which noise is
// drawn shows in all of them.
//
// Besides the table random settings: those may be refused, and hold if they are not. Every fourth
// runs on the device that keeps its memory and its time to itself (tests/support/late.c), where
// steps are replayed and collectives staged, or the device's own; with WEFT_LATE=1 all do.
//
//   test_compile_meshes                    a fixed part of both; WEFT_LONG=1 all of it
//   test_compile_meshes MODEL [SETTING]    those whose words are in the model's name and the mesh
#include "tests/ops/rig.h"
#include "tests/support/device_transport.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/mesh_settings.h"

enum { STEPS = 2 };

// ---- data --------------------------------------------------------------------------------------

static struct {
    double images[BATCH * PIXELS], labels[BATCH];
    double tokens[BATCH * SEQ], targets[BATCH * SEQ], positions[BATCH * SEQ];
} batch;
static const double one = 1, hyper[HYPER_SLOTS] = {0.01, 10, 1000}, control[CONTROL_SLOTS];
static const struct whole_tensor data[] = {
    {"images", batch.images},   {"labels", batch.labels},       {"tokens", batch.tokens},
    {"targets", batch.targets}, {"positions", batch.positions}, {"one", &one},
    {"hyper", hyper},           {"control", control},           {NULL, NULL},
};

static void fill(double *to, int n, int below, uint32_t stream)
{
    struct rand_site site = {.seed = 11, .stream = stream};
    for (int i = 0; i < n; i++)
        to[i] = floor(below * (double)rand_uniform(&site, (uint64_t)i));
}

static int make_data(void **state)
{
    (void)state;
    rig_find_backend();
    fill(batch.images, BATCH * PIXELS, 256, 1);
    fill(batch.labels, BATCH, 6, 2);
    fill(batch.tokens, BATCH * SEQ, VOCAB, 3);
    fill(batch.targets, BATCH * SEQ, VOCAB, 4);
    for (int i = 0; i < BATCH * SEQ; i++)
        batch.positions[i] = i % SEQ;
    return 0;
}

// ---- one device --------------------------------------------------------------------------------

static struct reference {
    bool made;
    struct fixture f;
    struct interp start, trained, evaluated;
    double largest; // momentum of all
} references[MODELS][2];

static void feed(struct interp *x, int step)
{
    const double count = step;
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_INPUT && val->kind != VALUE_SCALAR)
            continue;
        const struct whole_tensor *d = data;
        while (d->name && strcmp(d->name, val->name) != 0)
            d++;
        assert_true(d->name || !strcmp(val->name, "step"));
        interp_set(x, val->name, d->name ? d->whole : &count);
    }
}

static void evaluate(struct reference *r)
{
    struct interp *x = &r->evaluated;
    interp_init(x, r->f.c.global[PROGRAM_EVAL], NULL, 1);
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].kind == VALUE_PARAM) {
            const char *name = x->g->values[v].name;
            interp_set(x, name, r->trained.value[interp_find(&r->trained, name)]);
        }
    feed(x, 0);
    interp_phase(x, PHASE_FORWARD, 0);
    interp_phase(x, PHASE_UPDATE, 0);
}

static bool in_bf16(const struct setting *s)
{
    return strstr(s->more, "bf16") != NULL;
}

static struct reference *reference_of(int model, bool half)
{
    const struct setting alone = {ALL, "dp: 1", 1,
                                  "",  "",      half ? "precision: {compute: bf16}\n" : ""};
    struct reference *r = &references[model][half];
    if (r->made)
        return r;
    if (compile_setting(&r->f, &models[model], &alone))
        fail_msg("%s: %s", models[model].name, r->f.e.text);
    interp_init(&r->start, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&r->start);
    interp_init(&r->trained, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&r->trained);
    for (int s = 0; s < STEPS; s++) {
        feed(&r->trained, s);
        for (enum phase p = 0; p < PHASE_COUNT; p++)
            interp_phase(&r->trained, p, 0);
    }
    evaluate(r);
    const struct graph *g = r->trained.g;
    for (int v = 0; v < g->nvalues; v++)
        for (int64_t i = 0;
             g->values[v].kind == VALUE_STATE && i < shape_count(&g->values[v].shape); i++)
            r->largest = fmax(r->largest, fabs(r->trained.value[v][i]));
    r->made = true;
    return r;
}

static int forget_references(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS * 2; k++) {
        struct reference *r = &references[k / 2][k % 2];
        if (!r->made)
            continue;
        interp_clear(&r->start);
        interp_clear(&r->trained);
        interp_clear(&r->evaluated);
        fixture_clear(&r->f);
    }
    return 0;
}

// ---- the table ---------------------------------------------------------------------------------

// Differences are told in units of the tensor's largest element, or of a thousandth of all: some
// gradients (of a biased qkv's keys) are zero but for rounding.
static int compare_ranks(const struct rank_threads *ranks, const struct reference *r, double rtol,
                         struct err *e)
{
    const struct interp *want = &r->trained;
    int rc = rank_threads_compare(ranks, PROGRAM_TRAIN, "metrics",
                                  want->value[interp_find(want, "metrics")], rtol, rtol, e);
    for (int v = 0; v < want->g->nvalues && !rc; v++) {
        const struct value *val = &want->g->values[v];
        double most = 1e-3 * r->largest;
        if (val->alias >= 0 || (val->kind != VALUE_PARAM && val->kind != VALUE_STATE))
            continue;
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            most = fmax(most, fabs(want->value[v][i]));
        rc = rank_threads_compare(ranks, PROGRAM_TRAIN, val->name, want->value[v], 0, rtol * most,
                                  e);
    }
    want = &r->evaluated;
    return rc ? rc
              : rank_threads_compare(ranks, PROGRAM_EVAL, "metrics",
                                     want->value[interp_find(want, "metrics")], rtol, rtol, e);
}

static const char *only_model, *only_mesh;
static bool only_late;

// The late device's collectives by turns: staged by the hosts, beside the computation, within it.
static const struct transport *choose_transport(const struct compiled *c, int turn)
{
    if (turn % 3 == 0)
        return &host_transport;
    return turn % 3 == 1 || c->nstages > 1 ? &event_transport : &inline_transport;
}

enum verdict { HOLDS, REFUSED, FAILS };

// Refused: the job asks for what cannot be, and is told so.
static enum verdict try_setting(int model, const struct setting *s)
{
    struct reference *r = reference_of(model, in_bf16(s));
    struct fixture f;
    struct err e = {0};
    static int tried;
    bool late = ++tried % 4 == 0 || only_late;
    struct rank_threads ranks = {
        .compiled = &f.c, .start = &r->start, .data = data, .steps = STEPS, .late = late};
    int rc = compile_setting(&f, &models[model], s);
    if (late)
        ranks.transport = choose_transport(&f.c, tried);
    if (rc)
        e = f.e;
    else {
        rc = rank_threads_run(&ranks, &e);
        rc = rc ? rc : compare_ranks(&ranks, r, in_bf16(s) ? 0.06 : 1e-5, &e);
        rank_threads_clear(&ranks);
    }
    enum verdict verdict = rc == 0 ? HOLDS : f.e.code == ERR_INVALID ? REFUSED : FAILS;
    if (verdict == FAILS || (rc && s->models))
        printf("%s on {%s}%s, microbatches: %d%s, {%s} %s: %s\n", models[model].name, s->mesh,
               late ? " late" : "", s->microbatches, s->train, s->sharding, s->more, e.text);
    fixture_clear(&f);
    return verdict;
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
                (only_mesh && !strstr(settings[s].mesh, only_mesh)))
                continue;
            bad += try_setting(m, &settings[s]) != HOLDS;
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
    uint32_t count = getenv("WEFT_LONG") ? 600 : 40;
    int verdicts[3] = {0};
    for (uint32_t seed = 1; seed <= count && !only_model; seed++) {
        struct random_setting r;
        int model = random_setting(&r, seed);
        verdicts[try_setting(model, &r.setting)]++;
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
    return cmocka_run_group_tests(tests, make_data, forget_references);
}
