// SPDX-License-Identifier: Apache-2.0
// Named sizes of decoders. See preset.h.
#include "common/job/preset.h"

#include "common/job/reading.h"

struct preset {
    const char *name;
    enum job_family family;
    int64_t layers, embed, heads, kv_heads, head_dim, mlp, seq, vocab;
};

static const struct preset presets[] = {
    {"gpt2", JOB_GPT2, 12, 768, 12, 12, 64, 3072, 1024, 50257},
    {"gpt2-350m", JOB_GPT2, 24, 1024, 16, 16, 64, 4096, 1024, 50257},
    {"gpt2-774m", JOB_GPT2, 36, 1280, 20, 20, 64, 5120, 1024, 50257},
    {"gpt2-1558m", JOB_GPT2, 48, 1600, 25, 25, 64, 6400, 1024, 50257},
    {"llama", JOB_LLAMA, 16, 2048, 32, 8, 64, 8192, 8192, 128256},
    {"llama-8b", JOB_LLAMA, 32, 4096, 32, 8, 128, 14336, 8192, 128256},
    {"llama-70b", JOB_LLAMA, 80, 8192, 64, 8, 128, 28672, 8192, 128256},
    {"llama-405b", JOB_LLAMA, 126, 16384, 128, 8, 128, 53248, 8192, 128256},
    {"cookbook", JOB_COOKBOOK, 4, 512, 8, 8, 128, 2048, 128, 256},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *const preset_names[PRESETS + 1] = {
    "gpt2",     "gpt2-350m", "gpt2-774m",  "gpt2-1558m", "llama",
    "llama-8b", "llama-70b", "llama-405b", "cookbook",   NULL,
};

enum { WIDEST = 1 << 17 }; // of all heads together

static void take_preset_size(struct reading *r, const char *path, int64_t *field, int64_t value)
{
    if (!reading_given(r, path))
        *field = value;
}

// Sizes that follow from given ones: the heads share the width, and the hidden layer grows with it.
static void derive_sizes(struct reading *r, struct job_model *m, const struct preset *p)
{
    bool embed = reading_given(r, "model.embed"), heads = reading_given(r, "model.heads");
    take_preset_size(r, "model.mlp", &m->mlp, embed ? p->mlp * m->embed / p->embed : p->mlp);
    take_preset_size(r, "model.head_dim", &m->head_dim,
                     embed || heads ? m->embed / m->heads : p->head_dim);
    if (!reading_given(r, "model.kv_heads"))
        m->kv_heads =
            p->heads != p->kv_heads && m->heads % p->kv_heads == 0 ? p->kv_heads : m->heads;
}

// "4 or 8": the divisors of `of` next to `n` on either side.
static const char *find_divisors(struct reading *r, int64_t of, int64_t n)
{
    int64_t below = n < of ? n : of, above = n;
    while (below > 1 && of % below)
        below--;
    while (above < of && of % above)
        above++;
    return above <= of && of % above == 0
               ? arena_printf(r->arena, "%lld or %lld", (long long)below, (long long)above)
               : arena_printf(r->arena, "%lld", (long long)below);
}

static void check_sizes(struct reading *r, const struct job_model *m)
{
    bool derived = !reading_given(r, "model.head_dim");
    if (derived && (reading_given(r, "model.embed") || reading_given(r, "model.heads")) &&
        m->embed % m->heads)
        reading_error(
            r, reading_row(r, reading_given(r, "model.heads") ? "model.heads" : "model.embed"),
            "%lld heads do not divide the width, %lld: %s heads would do, or a "
            "model.head_dim of its own",
            (long long)m->heads, (long long)m->embed, find_divisors(r, m->embed, m->heads));
    else if (m->family == JOB_LLAMA && m->head_dim % 2)
        reading_error(r, reading_row(r, derived ? "model.heads" : "model.head_dim"),
                      "a head of %lld elements: rotary positions turn pairs: %lld would do",
                      (long long)m->head_dim, (long long)m->head_dim + 1);
    if (m->heads * m->head_dim > WIDEST)
        reading_error(r, reading_row(r, "model.heads"),
                      "heads times head_dim is over %d: %lld heads of %lld elements would do",
                      WIDEST, (long long)(WIDEST / m->head_dim), (long long)m->head_dim);
    if (m->heads % m->kv_heads)
        reading_error(r, reading_row(r, "model.kv_heads"),
                      "%lld key heads do not divide the %lld query heads: %s would do",
                      (long long)m->kv_heads, (long long)m->heads,
                      find_divisors(r, m->heads, m->kv_heads));
}

static void derive_dropouts(struct reading *r, struct job_model *m)
{
    const struct {
        const char *path;
        double *field;
    } each[] = {{"model.dropout_attention", &m->dropout_attention},
                {"model.dropout_residual", &m->dropout_residual},
                {"model.dropout_embedding", &m->dropout_embedding}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (!reading_given(r, each[i].path))
            *each[i].field = m->dropout;
}

void resolve_preset(struct reading *r)
{
    struct job_model *m = &r->job->model;
    if (!READING_OK(r, "model.layers", "model.embed", "model.heads", "model.kv_heads",
                    "model.head_dim", "model.mlp", "model.seq", "model.vocab", "model.kind",
                    "model.preset"))
        return;
    if (m->kind != JOB_MODEL_DECODER)
        return;
    const struct preset *p = &presets[m->preset];
    m->family = p->family;
    take_preset_size(r, "model.layers", &m->layers, p->layers);
    take_preset_size(r, "model.embed", &m->embed, p->embed);
    take_preset_size(r, "model.heads", &m->heads, p->heads);
    take_preset_size(r, "model.seq", &m->seq, p->seq);
    take_preset_size(r, "model.vocab", &m->vocab, p->vocab);
    derive_sizes(r, m, p);
    check_sizes(r, m);
    derive_dropouts(r, m);
}
