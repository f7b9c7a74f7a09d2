// SPDX-License-Identifier: Apache-2.0
// Named sizes of decoders: each may be given, and what does not fit together is refused with its
// line and what would do.
#include "tests/unit/job_case.h"

#define HEAD                       \
    "name: t\ntrain: {steps: 1}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 4}\nmodel:\n"

// The published shapes: layers, width, heads, key heads, elements of a head, hidden, context, ids.
static const struct {
    const char *preset;
    int64_t size[8];
} published[] = {
    {"gpt2", {12, 768, 12, 12, 64, 3072, 1024, 50257}},
    {"gpt2-350m", {24, 1024, 16, 16, 64, 4096, 1024, 50257}},
    {"gpt2-774m", {36, 1280, 20, 20, 64, 5120, 1024, 50257}},
    {"gpt2-1558m", {48, 1600, 25, 25, 64, 6400, 1024, 50257}},
    {"llama", {16, 2048, 32, 8, 64, 8192, 8192, 128256}},
    {"llama-8b", {32, 4096, 32, 8, 128, 14336, 8192, 128256}},
    {"llama-70b", {80, 8192, 64, 8, 128, 28672, 8192, 128256}},
    {"llama-405b", {126, 16384, 128, 8, 128, 53248, 8192, 128256}},
    {"cookbook", {4, 512, 8, 8, 128, 2048, 128, 256}},
};
enum { PRESETS = sizeof published / sizeof *published, SIZES = 8 };
static const char *const keys[SIZES] = {"layers",   "embed", "heads", "kv_heads",
                                        "head_dim", "mlp",   "seq",   "vocab"};

static void sizes_of(const char *text, int64_t out[SIZES])
{
    struct job_case c;
    case_valid(&c, text);
    const struct job_model *m = &c.job.model;
    const int64_t size[SIZES] = {m->layers,   m->embed, m->heads, m->kv_heads,
                                 m->head_dim, m->mlp,   m->seq,   m->vocab};
    memcpy(out, size, sizeof size);
    case_clear(&c);
}

static void presets_are_the_published_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < PRESETS; i++) {
        char text[300];
        int64_t got[SIZES];
        snprintf(text, sizeof text, HEAD "  {kind: decoder, preset: %s}\n", published[i].preset);
        sizes_of(text, got);
        for (int k = 0; k < SIZES; k++)
            if (got[k] != published[i].size[k])
                fail_msg("%s: %s is %lld", published[i].preset, keys[k], (long long)got[k]);
    }
}

// All at once, so that nothing follows from anything; key heads are llama's alone.
static void every_size_may_be_given(void **state)
{
    static const int64_t own[SIZES] = {3, 40, 6, 2, 10, 56, 17, 300};
    (void)state;
    for (int i = 0; i < PRESETS; i++) {
        struct buf text = {0};
        int64_t got[SIZES];
        bool llama = strncmp(published[i].preset, "llama", 5) == 0;
        buf_printf(&text, HEAD "  kind: decoder\n  preset: %s\n", published[i].preset);
        for (int k = 0; k < SIZES; k++)
            if (k != 3 || llama)
                buf_printf(&text, "  %s: %lld\n", keys[k], (long long)own[k]);
        sizes_of(buf_str(&text), got);
        for (int k = 0; k < SIZES; k++)
            if (got[k] != (k == 3 && !llama ? own[2] : own[k]))
                fail_msg("%s: %s is %lld", published[i].preset, keys[k], (long long)got[k]);
        buf_clear(&text);
    }
}

// The model begins on line 5.
static void sizes_that_do_not_fit_are_refused_with_line_and_remedy(void **state)
{
    static const struct {
        const char *model, *says;
    } cases[] = {
        {"  heads: 7\n", "job.yaml:6:10: model.heads: 7 heads do not divide the width, 768: 6 or 8 "
                         "heads would do, or a model.head_dim of its own\n"},
        {"  embed: 100\n", "job.yaml:6:10: model.embed: 12 heads do not divide the width, 100: 10 "
                           "or 20 heads would do, or a model.head_dim of its own\n"},
        {"  preset: llama\n  kv_heads: 5\n", "job.yaml:7:13: model.kv_heads: 5 key heads do not "
                                             "divide the 32 query heads: 4 or 8 would "
                                             "do\n"},
        {"  preset: llama\n  kv_heads: 64\n",
         "job.yaml:7:13: model.kv_heads: 64 key heads do not divide the 32 query heads: 32 would "
         "do\n"},
        {"  preset: llama-8b\n  head_dim: 63\n",
         "job.yaml:7:13: model.head_dim: a head of 63 elements: rotary positions turn pairs: 64 "
         "would do\n"},
        {"  heads: 1024\n  head_dim: 512\n",
         "job.yaml:6:10: model.heads: heads times head_dim is over 131072: 256 heads of 512 "
         "elements would do\n"},
        {"  layers: 0\n", "job.yaml:6:11: model.layers: 0 is too small: it must be at least 1\n"},
        {"  preset: gpt2-124m\n", "model.preset"},
        {"  theta: 100\n", "job.yaml:6:3: model.theta: acts only when model.preset is llama or "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_case c;
        char text[400];
        snprintf(text, sizeof text, HEAD "  kind: decoder\n%s", cases[i].model);
        assert_int_equal(case_read(&c, text, strlen(text), NULL, 0), ERR_INVALID);
        assert_int_equal(c.errors.n, 1);
        if (!strstr(buf_str(&c.text), cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, buf_str(&c.text));
        case_clear(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_are_the_published_shapes),
        cmocka_unit_test(every_size_may_be_given),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused_with_line_and_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
