// SPDX-License-Identifier: Apache-2.0
// Models of one's own, tests/unit/programs, none of which is like a program that comes with weft;
// and of these the decoders that test_compile_meshes has not. Each on every mesh of the table, in
// f32 and in bf16, is the model of one device (mesh_case.h says in what).
//
//   test_compile_own                    a fixed part; WEFT_LONG=1 all of it
//   test_compile_own MODEL [SETTING]    those whose words are in the model's name and the mesh
#include "tests/unit/mesh_case.h"

#define IMAGES \
    "{format: npy, dtype: u8, train: {images: i, labels: l}, eval: {images: i, labels: l}, "
#define ALONE  "{format: npy, dtype: u8, train: {images: i}, eval: {images: i}, "
#define TOKENS "{format: tokens, train: {tokens: t}, eval: {tokens: t}, "
#define OWN(name, data)                                                           \
    {                                                                             \
#name, "{program: ./tests/unit/programs/" #name ".model}", data, "", NULL \
    }

// Latent attention whose values are wider than its keys, which share one rotary part; experts that
// have places for two of three choices.
#define DEEPSEEK                                                                                 \
    {                                                                                            \
        "deepseek",                                                                              \
            "{program: deepseek-v2-lite, layers: 4, embed: 24, heads: 8, head_dim: 4, rotary: "  \
            "2, value: 6, latent: 12, mlp: 48, narrow: 24, shared: 48, experts: 4, choices: 3, " \
            "capacity: 2, seq: 24, vocab: 21, vocab_multiple: 24, theta: 50}",                   \
            TOKENS, "", NULL                                                                     \
    }

// The cookbook with what its source makes and never reads.
#define COOKBOOK_TEXT(linear_in)                                                                 \
    "{program: cookbook, layers: 4, embed: 24, heads: 8, head_dim: 4, mlp: 48, seq: 24, vocab: " \
    "21, vocab_multiple: 24, linear_in: " linear_in "}"
#define UNREAD                                              \
    {                                                       \
        "unread", COOKBOOK_TEXT("unread"), TOKENS, "", NULL \
    }

// The smallest that come with weft: a hidden layer, on either side in the vae.
#define ONE_WIDTH                                                                           \
    {                                                                                       \
        "one width", "{program: vae, inputs: 24, hidden: [48], latent: 6}", ALONE, "", NULL \
    }
#define ONE_HIDDEN                                                                             \
    {                                                                                          \
        "one hidden", "{program: mlp, inputs: 24, hidden: [48], classes: 6}", IMAGES, "", NULL \
    }

// Llama 3.2: its head is the embedding, its positions are stretched.
#define LLAMA32                                                                                    \
    {                                                                                              \
        "llama 3.2",                                                                               \
            "{program: llama, layers: 4, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 48, " \
            "tied: 1, stretch: 32, length: 6, seq: 24, vocab: 21, vocab_multiple: 24, theta: 50}", \
            TOKENS, "", NULL                                                                       \
    }

#define DRAWN_FUSED                                                                               \
    {                                                                                             \
        "drawn fused", "{program: ./tests/unit/programs/drawn.model, fused: 1}", TOKENS, "", NULL \
    }

// Decoders that come with weft, each with what it has and others have not: windows, caps, biases,
// norms of queries and keys, blocks side by side.
#define COMES_WITH_WEFT(name, sizes)                                                      \
    {                                                                                     \
#name,                                                                            \
            "{program: " #name ", layers: 4, embed: 24, heads: 8, head_dim: 4, seq: 24, " \
            "vocab: 21, vocab_multiple: 24, " sizes "}",                                  \
            TOKENS, "", NULL                                                              \
    }

// Those by which the language was specified; its vae has neither layers nor blocks to remake.
#define EXAMPLE(name, data) OWN(example_##name, data)
#define EXAMPLE_GPT2                                                                            \
    {                                                                                           \
        "example_gpt2",                                                                         \
            "{program: ./tests/unit/programs/example_gpt2.model, layers: 4, embed: 24, heads: " \
            "8, seq: 24, vocab: 21, dropout: 0.2}",                                             \
            TOKENS, "", NULL                                                                    \
    }

// What a program has, and so what its meshes may have: stages are of two layers at least, LAYERS has
// four. One that compares the samples of a batch with each other is another model with other
// microbatches.
enum { ANY = 1, STAGES = 2, LAYERS = 2 | 32, SEQUENCE = 4, EXPERTS = 8, WHOLE_BATCH = 16 };

static const struct own {
    struct model model;
    unsigned has;
} owns[] = {
    {OWN(parallel, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(hyper, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(encoder, IMAGES), ANY | LAYERS},
    {OWN(towers, TOKENS), ANY | LAYERS | SEQUENCE | WHOLE_BATCH},
    {OWN(stacked, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(mixer, IMAGES), ANY | LAYERS},
    {OWN(unet, ALONE), ANY | LAYERS},
    {OWN(tied, ALONE), ANY},
    {OWN(recurrent, IMAGES), ANY | LAYERS},
    {OWN(by_hand, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(multiquery, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(capped, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(uneven, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(two_losses, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(helped, TOKENS), ANY | SEQUENCE}, // it evaluates with fewer layers
    {OWN(soft_experts, TOKENS), ANY | LAYERS | SEQUENCE | EXPERTS},
    {OWN(biased, TOKENS), ANY | LAYERS | SEQUENCE | EXPERTS},
    {DEEPSEEK, ANY | LAYERS | SEQUENCE | EXPERTS},
    {OWN(no_attention, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(ordered, TOKENS), ANY | LAYERS | SEQUENCE},
    {OWN(drawn, TOKENS), ANY | LAYERS | SEQUENCE},
    {DRAWN_FUSED, ANY | LAYERS | SEQUENCE},
    {OWN(headings, IMAGES), ANY | LAYERS},
    {EXAMPLE_GPT2, ANY | LAYERS | SEQUENCE},
    {EXAMPLE(llama, TOKENS), ANY | LAYERS | SEQUENCE},
    {EXAMPLE(palm, TOKENS), ANY | LAYERS | SEQUENCE},
    {EXAMPLE(jaxformer, TOKENS), ANY | LAYERS | SEQUENCE | EXPERTS},
    {ONE_WIDTH, ANY | LAYERS},
    {ONE_HIDDEN, ANY | STAGES},
    {UNREAD, ANY | LAYERS | SEQUENCE},
    {LLAMA32, ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(gpt3, "mlp: 48, dropout: 0.2"), ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(llama2, "kv_heads: 8, mlp: 48, theta: 50"), ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(mistral, "kv_heads: 4, mlp: 48, window: 7, theta: 50"),
     ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(qwen2, "kv_heads: 4, mlp: 48, tied: 0, theta: 50"), ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(qwen3, "kv_heads: 4, mlp: 48, tied: 1, theta: 50"), ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(gemma2,
                     "kv_heads: 4, mlp: 48, query: 6, window: 7, score_cap: 2, logit_cap: 3"),
     ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(palm, "mlp: 48, theta: 50"), ANY | LAYERS | SEQUENCE},
    {COMES_WITH_WEFT(nanochat, "kv_heads: 4, mlp: 48, logit_cap: 3"), ANY | LAYERS | SEQUENCE},
};
enum { OWNS = sizeof owns / sizeof *owns };

// The first member says what a program must have for the mesh.
static const struct setting meshes[] = {
    {ANY, "dp: 4", 1, "", "", ""},
    {ANY, "fsdp: 3", 2, ", remat: full", "", ""},
    {ANY, "tp: 4", 1, "", "", ""},
    {ANY, "tp: 2", 3, ", remat: block", "", ""},
    {ANY, "dp: 2, tp: 2", 2, "", "grads: [dp], optimizer: [dp]", ""},
    {ANY, "fsdp: 2, tp: 2", 1, ", fuse: false", "", ""},
    {ANY, "dp: 2, fsdp: 2", 3, "", "optimizer: [dp]", ""},
    {ANY, "fsdp: 2, tp: 4", 1, ", remat: block", "", ""},
    {SEQUENCE, "tp: 4", 2, "", SP, ""},
    {SEQUENCE, "cp: 3", 1, "", "", ""},
    {SEQUENCE, "cp: 2, tp: 2", 2, ", remat: block", SP, ""},
    {SEQUENCE, "dp: 2, cp: 2", 1, "", "optimizer: [dp, cp]", ""},
    {STAGES, "pp: 2", 3, ", remat: block", "", ""},
    {LAYERS, "pp: 4, dp: 2", 4, "", "", ""},
    {STAGES, "pp: 2, fsdp: 2, tp: 2", 2, ", remat: full", "", ""},
    {LAYERS | SEQUENCE, "pp: 2, cp: 2", 2, "", "", "pipeline: {schedule: gpipe}\n"},
    {EXPERTS, "ep: 4", 1, "", "", ""},
    {EXPERTS, "dp: 2, ep: 2", 2, ", remat: block", "", ""},
    {EXPERTS, "ep: 2, tp: 2", 1, "", SP, ""},
    {EXPERTS, "pp: 2, ep: 2", 2, "", "", ""},
    {ANY, "dp: 2, tp: 2", 2, "", "", "precision: {compute: bf16}\n"},
    {ANY, "fsdp: 2, tp: 2", 1, ", remat: block", "", "precision: {compute: bf16}\n"},
    {SEQUENCE, "cp: 2, tp: 2", 1, "", SP, "precision: {compute: bf16}\n"},
    {STAGES, "pp: 2, fsdp: 2", 2, "", "", "precision: {compute: bf16, reduce: bf16}\n"},
};
enum { MESHES = sizeof meshes / sizeof *meshes };

static const char *only_model, *only_mesh;
static struct reference references[OWNS][2];

static int forget_all(void **state)
{
    (void)state;
    forget_references(references[0], OWNS * 2);
    return 0;
}

static bool may_run(const struct own *own, const struct setting *on)
{
    return !(on->models & ~own->has) && (!only_model || strstr(own->model.name, only_model)) &&
           (!only_mesh || strstr(on->mesh, only_mesh));
}

// They take long: without WEFT_LONG each has every second mesh, and decoders, which are many and much
// alike, every fifth.
static int take_every(const struct own *own)
{
    if (getenv("WEFT_LONG") || only_model)
        return 1;
    return own->has & SEQUENCE && own->has & STAGES && !(own->has & WHOLE_BATCH) ? 5 : 2;
}

static bool is_due(const struct own *own, int s)
{
    int every = take_every(own);
    return s % every == (int)(own - owns) % every;
}

static void each_model_on_each_mesh_is_the_model_of_one_device(void **state)
{
    (void)state;
    int bad = 0, ran = 0;
    for (int m = 0; m < OWNS; m++) {
        int of_model = 0;
        for (int s = 0; s < MESHES; s++) {
            if (!may_run(&owns[m], &meshes[s]) || !is_due(&owns[m], s))
                continue;
            struct setting on = meshes[s];
            if (owns[m].has & WHOLE_BATCH)
                on.microbatches = 1;
            of_model++;
            if (!is_spared())
                bad += try_setting(&owns[m].model, references[m], &on) != HOLDS;
        }
        ran += of_model;
        if (of_model < 3 && !only_model && !only_mesh)
            fail_msg("%s ran on %d meshes", owns[m].model.name, of_model);
    }
    if (bad)
        fail_msg("%d of %d fail", bad, ran);
    assert_true(ran > 0);
}

// In double precision: two steps of each are the same but for rounding, and so is an evaluation.
static void attention_written_out_is_the_op_of_weft(void **state)
{
    static const struct model fused = {
        "fused", "{program: ./tests/unit/programs/by_hand.model, how: fused}", TOKENS, "", NULL};
    struct reference whole[2] = {0};
    (void)state;
    const struct own *by_hand = owns;
    while (strcmp(by_hand->model.name, "by_hand") != 0)
        by_hand++;
    const struct reference *hand = reference_of(references[by_hand - owns], &by_hand->model, false);
    const struct reference *op = reference_of(whole, &fused, false);
    const struct graph *g = op->trained.g;
    int params = 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && g->values[v].alias < 0) {
            compare(&op->trained, &hand->trained, g->values[v].name);
            params++;
        }
    compare(&op->trained, &hand->trained, "metrics");
    compare(&op->evaluated, &hand->evaluated, "metrics");
    assert_true(params > 4);
    forget_references(whole, 2);
}

// The bytes of a device's arena for what the backward reads, with layers in functions: 8 of them.
static uint64_t arena_of(const char *remat)
{
    struct fixture f;
    char text[1000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {program: ./tests/unit/programs/stacked.model, layers: 4}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 24}\nmesh: {dp: 2}\n"
             "train: {steps: 1, remat: %s}\n",
             remat);
    compile_text(&f, text, 0);
    uint64_t bytes = f.c.memory.transient + f.c.memory.stash;
    fixture_clear(&f);
    return bytes;
}

// Of 12 samples of 24 tokens of 24 features a layer keeps one tensor in place of more than ten.
static void layers_of_functions_are_remade(void **state)
{
    (void)state;
    uint64_t none = arena_of("none"), block = arena_of("block");
    if (block > none / 3)
        fail_msg("%llu bytes, %llu without", (unsigned long long)block, (unsigned long long)none);
}

// Two of its four layers are made only in training.
static void stages_want_as_many_layers_in_each_program(void **state)
{
    static const char text[] = "name: t\nmodel: {program: ./tests/unit/programs/helped.model}\n"
                               "data: " TOKENS "batch: 24}\ntrain: {steps: 1, microbatches: 2}\n";
    static const char *const stages = "mesh={pp: 2}";
    struct fixture f;
    (void)state;
    compile_text(&f, text, 0);
    assert_int_equal(f.c.global[PROGRAM_TRAIN]->nlayers, 4);
    assert_int_equal(f.c.global[PROGRAM_EVAL]->nlayers, 2);
    fixture_clear(&f);
    assert_int_equal(compile_with(&f, text, &stages, 1), ERR_INVALID);
    assert_string_equal(f.e.text, "pipeline.layers: the eval program has 2 layers and the job has "
                                  "4: stages want as many in each program: leave the axis out");
    fixture_clear(&f);
}

// Two steps of AdamW, rate 0.01 and decay 0.1.
static void train_cookbook(struct fixture *f, struct interp *x, const char *model)
{
    char text[2000];
    snprintf(text, sizeof text,
             "name: t\nmodel: %s\ndata: " TOKENS "batch: %d}\nmesh: {dp: 1}\n"
             "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.5}\n"
             "schedule: {kind: constant, value: 0.01}\ntrain: {steps: 2}\n",
             model, BATCH);
    compile_text(f, text, 0);
    interp_init(x, f->c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(x);
    for (int s = 0; s < STEPS; s++) {
        feed(x, s);
        for (enum phase p = 0; p < PHASE_COUNT; p++)
            interp_phase(x, p, 0);
    }
}

// All else is to the last bit what it is without it.
static void what_nothing_reads_only_decays(void **state)
{
    struct fixture without, with;
    struct interp x, y;
    int same = 0, unread = 0;
    (void)state;
    train_cookbook(&without, &x, COOKBOOK_TEXT("absent"));
    train_cookbook(&with, &y, COOKBOOK_TEXT("unread"));
    struct interp born;
    interp_init(&born, y.g, NULL, 1);
    set_params(&born);
    for (int v = 0; v < y.g->nvalues; v++) {
        const struct value *val = &y.g->values[v];
        int64_t n = shape_count(&val->shape);
        bool mine = val->name && strstr(val->name, "linear_in/");
        if (val->alias >= 0 || (val->kind != VALUE_PARAM && val->kind != VALUE_STATE))
            continue;
        const double *was = mine ? NULL : x.value[interp_find(&x, val->name)];
        for (int64_t i = 0; i < n && !mine; i++)
            assert_true(y.value[v][i] == was[i]);
        for (int64_t i = 0; i < n && mine; i++) {
            double want = val->kind == VALUE_STATE ? 0 : born.value[v][i] * 0.999 * 0.999;
            assert_true(fabs(y.value[v][i] - want) <= 1e-6 * fabs(want));
        }
        same += !mine;
        unread += mine;
    }
    assert_int_equal(unread, 6); // two parameters, two states each
    assert_int_equal(same, 57);  // 4 layers of 4 parameters, 3 more, two states each
    interp_clear(&born);
    interp_clear(&x);
    interp_clear(&y);
    fixture_clear(&without);
    fixture_clear(&with);
}

int main(int argc, char **argv)
{
    only_model = argc > 1 ? argv[1] : NULL;
    only_mesh = argc > 2 ? argv[2] : NULL;
    only_late = getenv("WEFT_LATE") != NULL;
    by_rounding = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_written_out_is_the_op_of_weft),
        cmocka_unit_test(what_nothing_reads_only_decays),
        cmocka_unit_test(layers_of_functions_are_remade),
        cmocka_unit_test(stages_want_as_many_layers_in_each_program),
        cmocka_unit_test(each_model_on_each_mesh_is_the_model_of_one_device),
    };
    return cmocka_run_group_tests(tests, make_data, forget_all);
}
