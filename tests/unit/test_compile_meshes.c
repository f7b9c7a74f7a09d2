// SPDX-License-Identifier: Apache-2.0
// Every model over every mesh: real programs with the CPU backend, a thread a rank, on the
// communicator that checks order and deadlock. Two steps of training are those of one device in
// double precision with one microbatch and nothing remade: loss and norm, momenta (which are the
// gradients of both steps), parameters; and so is an evaluation. What is dropped and which noise is
// drawn shows in all of them.
//
// Besides the table random settings: those may be refused, and hold if they are not. Every fourth
// runs on the device that keeps its memory and its time to itself (tests/support/late.c), where
// collectives are staged and steps replayed; with WEFT_LATE=1 all do.
//
//   test_compile_meshes                    a fixed part of both; WEFT_LONG=1 all of it
//   test_compile_meshes MODEL [SETTING]    those whose words are in the model's name and the mesh
#include "tests/ops/rig.h"
#include "tests/support/crew.h"
#include "tests/unit/compile_case.h"

enum { BATCH = 24, SEQ = 24, VOCAB = 21, PIXELS = 24, STEPS = 2 };

// Sizes that cuts of 2, 3, 4, 6 and 8 divide where a model has such cuts: gpt2 has 12 heads, llama
// 8 and 2 for keys, cookbook 8.
enum { MLP = 1, VAE = 2, GPT2 = 4, LLAMA = 8, COOKBOOK = 16, MODELS = 5 };
enum {
    DECODERS = GPT2 | LLAMA | COOKBOOK,
    LAYERED = DECODERS | MLP, // a VAE has no stages
    ALL = LAYERED | VAE,
    THIRDS = MLP | VAE | GPT2,
    EIGHTHS = ALL & ~GPT2,
};

static const struct model {
    const char *name, *text, *data, *optimizer;
} models[MODELS] = {
    {"mlp", "{kind: mlp, inputs: 24, hidden: [48, 24, 48], classes: 6, activation: gelu}",
     "{format: npy, dtype: u8, train: {images: i, labels: l}, eval: {images: i, labels: l}, ", ""},
    {"vae", "{kind: vae, inputs: 24, hidden: [48], latent: 6, activation: gelu}",
     "{format: npy, dtype: u8, train: {images: i}, eval: {images: i}, ", ""},
    {"gpt2",
     "{kind: decoder, preset: gpt2, layers: 4, embed: 24, heads: 12, head_dim: 2, mlp: 48, seq: "
     "24, vocab: 21, vocab_multiple: 24, dropout: 0.2}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ",
     ", groups: [{match: \"*norm*\", lr_scale: 0.5}, {match: layers/2/mlp/*, freeze: true}]"},
    {"llama",
     "{kind: decoder, preset: llama, layers: 4, embed: 24, heads: 8, kv_heads: 2, head_dim: 4, "
     "mlp: 48, theta: 50, seq: 24, vocab: 21, vocab_multiple: 24, dropout_attention: 0.3, "
     "dropout_residual: 0.1}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", ""},
    {"cookbook",
     "{kind: decoder, preset: cookbook, layers: 4, embed: 24, heads: 8, head_dim: 4, mlp: 48, seq: "
     "24, vocab: 21, vocab_multiple: 24}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", ""},
};

#define WEIGHTS "rules: {embed: [fsdp, dp]}, gather: [fsdp, dp]"
#define SP      "activations: {act_seq: [batch, [seq, tp]]}"

static const struct setting {
    unsigned models;
    const char *mesh;
    int microbatches;
    const char *train;    // more of that section, with a comma in front
    const char *sharding; // the insides of it
    const char *more;     // further sections
} settings[] = {
    // An axis alone.
    {ALL, "dp: 8", 1, "", "", ""},
    {ALL, "dp: 3", 2, ", remat: block", "", ""},
    {ALL, "fsdp: 4", 1, "", "", ""},
    {ALL, "fsdp: 8", 3, ", remat: full", "", ""},
    {ALL, "tp: 2", 2, "", "", ""},
    {THIRDS, "tp: 3", 1, "", "", ""},
    {ALL, "tp: 4", 1, ", remat: block", "", ""},
    {ALL, "fsdp: 2, tp: 2", 1, ", fuse: false", "", ""},
    {THIRDS, "tp: 6", 2, "", "", ""},
    {EIGHTHS, "tp: 8", 1, "", "", ""},
    {DECODERS, "tp: 4", 2, ", remat: full", SP, ""},
    {DECODERS, "cp: 2", 2, "", "", ""},
    {DECODERS, "cp: 3", 1, ", remat: block", "", ""},
    {DECODERS, "cp: 4", 1, "", "", ""},
    {LAYERED, "pp: 2", 1, "", "", ""},
    {LAYERED, "pp: 3", 3, ", remat: block", "", ""},
    {LAYERED, "pp: 4", 4, "", "", "pipeline: {schedule: gpipe}\n"},
    {LAYERED, "pp: 2, dp: 2", 2, ", fuse: false, remat: full", "", ""},
    {LAYERED, "pp: 2", 4, ", remat: full", "", "pipeline: {stages: [1, 3]}\n"},
    // Pairs.
    {ALL, "dp: 2, fsdp: 2", 2, "", "", ""},
    {ALL, "fsdp: 3, dp: 2", 1, "", "", ""},
    {ALL, "dp: 2, tp: 2", 3, ", remat: full", "", ""},
    {THIRDS, "tp: 3, dp: 2", 2, ", remat: block", "", ""},
    {ALL, "fsdp: 2, tp: 4", 1, "", "", ""},
    {DECODERS, "fsdp: 2, tp: 2", 2, ", remat: block", SP, ""},
    {DECODERS, "cp: 2, tp: 2", 1, "", "", ""},
    {DECODERS, "tp: 4, cp: 2", 2, ", remat: full", "", ""},
    {DECODERS, "cp: 2, tp: 2", 2, ", remat: block", SP, ""},
    {GPT2, "cp: 2, tp: 3", 1, "", SP, ""},
    {DECODERS, "dp: 2, cp: 2", 3, ", remat: block", "", ""},
    {DECODERS, "fsdp: 2, cp: 3", 1, "", "", ""},
    {LAYERED, "pp: 2, fsdp: 2", 2, "", "", ""},
    {LAYERED, "fsdp: 2, pp: 3", 4, ", remat: full", "", "pipeline: {stages: [1, 2, 1]}\n"},
    {LAYERED, "dp: 2, pp: 4", 3, "", "", ""},
    {LAYERED, "pp: 2, tp: 4", 2, ", remat: block", "", "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, tp: 2", 2, "", SP, "pipeline: {stages: [3, 1]}\n"},
    {DECODERS, "pp: 2, cp: 2", 2, "", "", ""},
    {DECODERS, "cp: 2, pp: 4", 4, ", remat: block", "", ""},
    // Three.
    {ALL, "dp: 2, fsdp: 2, tp: 2", 2, ", remat: full", "", ""},
    {DECODERS, "dp: 2, fsdp: 2, tp: 2", 1, ", remat: block", SP, ""},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, "", "", ""},
    {DECODERS, "dp: 2, pp: 2, tp: 2", 4, ", remat: full", SP, "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, cp: 2, tp: 2", 2, ", remat: block", "", ""},
    {DECODERS, "fsdp: 2, cp: 2, tp: 2", 1, "", SP, ""},
    {DECODERS, "fsdp: 2, pp: 2, cp: 2", 3, "", "", "pipeline: {stages: [3, 1]}\n"},
    // State, and gradients too, cut finer than parameters.
    {ALL, "dp: 4", 2, "", "optimizer: [dp]", ""},
    {ALL, "dp: 3", 4, "", "grads: [dp], optimizer: [dp]", ""},
    {ALL, "dp: 2, fsdp: 2", 2, "", "grads: [dp], optimizer: [dp]", ""},
    {ALL, "dp: 2, fsdp: 2, tp: 2", 1, ", remat: block", "optimizer: [dp]", ""},
    {DECODERS, "dp: 2, cp: 2, tp: 2", 2, "", "grads: [dp], optimizer: [dp, cp]", ""},
    {LAYERED, "dp: 2, pp: 2", 3, "", "optimizer: [dp]", ""},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, ", remat: full", "grads: [dp], optimizer: [dp, tp]", ""},
    {LAYERED, "pp: 2, dp: 3", 2, ", remat: block", "grads: [dp], optimizer: [dp]",
     "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, tp: 4", 2, "", "optimizer: [tp], " SP, ""},
    // Names and specs of one's own.
    {ALL, "data: 2, model: 4", 2, "", "", ""},
    {ALL, "host: 2, gpu: 3", 1, "", "rules: {batch: [host, gpu], embed: gpu}, gather: [gpu]", ""},
    {ALL, "x: 2, y: 4", 1, "", "rules: {batch: x, embed: y, heads: y, mlp: x}, gather: [x, y]", ""},
    {LAYERED, "a: 2, b: 2, c: 2", 2, ", remat: block",
     "rules: {batch: a, layers: b, mlp: c, heads: c}, optimizer: [a]", ""},
    {DECODERS, "x: 2, y: 2", 2, "",
     "rules: {batch: x, seq: y}, gather: [x], params: [{match: \"*/mlp/*/weight\", spec: [x, ~]}, "
     "{match: embed/tokens, spec: [~, x]}]",
     ""},
    {DECODERS, "dp: 2, tp: 2", 2, "",
     "activations: {act_seq: [batch, ~, tp], act_logits: [batch, seq]}, params: [{match: "
     "\"*/attn/out/weight\", spec: [~, ~, tp]}, {match: \"*/norm*\", min: [1], spec: [tp]}]",
     ""},
    {MLP, "dp: 2, tp: 3", 2, "",
     "params: [{match: layers/3/weight, spec: [~, tp]}, {match: layers/3/bias, spec: [tp]}], "
     "activations: {act_logits: [batch, tp]}",
     ""},
    // In bf16.
    {ALL, "dp: 2, fsdp: 2, tp: 2", 2, "", "", "precision: {compute: bf16}\n"},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, ", remat: block", "grads: [dp], optimizer: [dp]",
     "precision: {compute: bf16}\n"},
    {DECODERS, "fsdp: 2, cp: 2, tp: 2", 2, ", remat: full", SP, "precision: {compute: bf16}\n"},
    {DECODERS, "pp: 2, cp: 2", 3, "", "", "precision: {compute: bf16, reduce: bf16}\n"},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// ---- data --------------------------------------------------------------------------------------

static struct {
    double images[BATCH * PIXELS], labels[BATCH];
    double tokens[BATCH * SEQ], targets[BATCH * SEQ], positions[BATCH * SEQ];
} batch;
static const double one = 1, hyper[HYPER_SLOTS] = {0.01, 10, 1000}, control[CONTROL_SLOTS];
static const struct crew_tensor data[] = {
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

static int compile_setting(struct fixture *f, const struct model *m, const struct setting *s)
{
    char text[2000];
    snprintf(text, sizeof text,
             "name: t\nmodel: %s\nmesh: {%s}\ndata: %sbatch: %d}\n"
             "optimizer: {kind: momentum, clip_norm: 0.5%s}\n"
             "schedule: {kind: constant, value: 0.01}\nsharding: {%s}\n%s"
             "train: {steps: 3, microbatches: %d, seed: 8589934597%s}\n",
             m->text, s->mesh, m->data, BATCH, m->optimizer, s->sharding, s->more, s->microbatches,
             s->train);
    bool parsed;
    return compile_or_not(f, text, &parsed);
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
        const struct crew_tensor *d = data;
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
static int compare_crew(const struct crew *crew, const struct reference *r, double rtol,
                        struct err *e)
{
    const struct interp *want = &r->trained;
    int rc = crew_compare(crew, PROGRAM_TRAIN, "metrics", want->value[interp_find(want, "metrics")],
                          rtol, rtol, e);
    for (int v = 0; v < want->g->nvalues && !rc; v++) {
        const struct value *val = &want->g->values[v];
        double most = 1e-3 * r->largest;
        if (val->alias >= 0 || (val->kind != VALUE_PARAM && val->kind != VALUE_STATE))
            continue;
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            most = fmax(most, fabs(want->value[v][i]));
        rc = crew_compare(crew, PROGRAM_TRAIN, val->name, want->value[v], 0, rtol * most, e);
    }
    want = &r->evaluated;
    return rc ? rc
              : crew_compare(crew, PROGRAM_EVAL, "metrics",
                             want->value[interp_find(want, "metrics")], rtol, rtol, e);
}

static const char *only_model, *only_mesh;
static bool only_late;

enum verdict { HOLDS, REFUSED, FAILS };

// Refused: the job asks for what cannot be, and is told so.
static enum verdict try_setting(int model, const struct setting *s)
{
    struct reference *r = reference_of(model, in_bf16(s));
    struct fixture f;
    struct err e = {0};
    static int tried;
    bool late = only_late || ++tried % 4 == 0;
    struct crew crew = {
        .compiled = &f.c, .start = &r->start, .data = data, .steps = STEPS, .late = late};
    int rc = compile_setting(&f, &models[model], s);
    if (rc)
        e = f.e;
    else {
        rc = crew_run(&crew, &e);
        rc = rc ? rc : compare_crew(&crew, r, in_bf16(s) ? 0.06 : 1e-5, &e);
        crew_clear(&crew);
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
    int model = pick(seed, 13, MODELS + 3); // decoders twice as often
    return model < MODELS ? model : model - 3;
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
