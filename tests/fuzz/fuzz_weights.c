// SPDX-License-Identifier: Apache-2.0
// What others give `weft import`, by its first byte: config.json (what is read to sizes is written, and
// read to the same), generation_config.json (its ids likewise), the index of a folder, a head of
// safetensors, and sections `export hf` of programs (whatever is accepted accounts for every element).
// Anything else is refused with a message.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/model/builder.h"
#include "common/weights/beside.h"
#include "common/weights/config.h"
#include "common/weights/foreign_files.h"
#include "common/weights/mapping.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void must_say(int rc, const struct err *e)
{
    must(!rc || (e->code != 0 && e->text[0] != 0 && e->code != ERR_INTERNAL));
}

static const struct model_program *read_program(const char *name, const char *text, struct arena *a)
{
    struct model_errors errs = {.arena = a};
    const struct model_program *p = NULL;
    (void)model_program_read(name, text, strlen(text), &p, &errs);
    return p;
}

// ---- config.json ---------------------------------------------------------------------------------

static void try_config(struct arena *a, const char *name, const char *text, size_t len)
{
    const struct model_program *p = read_program(name, model_text_find(name)->text, a);
    struct config_sizes one, two;
    struct json *top;
    struct buf out = {0};
    struct err e = {0};
    if (json_parse(a, text, len, &top, &e))
        return;
    int rc = config_read(p, top, a, &one, &e);
    must_say(rc, &e);
    if (!rc) {
        rc = config_write(&one.sizes, NULL, 0, a, &out, &e);
        must_say(rc, &e);
    }
    if (!rc) {
        must(!json_parse(a, buf_str(&out), out.len, &top, &e));
        must(!config_read(p, top, a, &two, &e));
        for (int i = 0; i < p->nsizes; i++) {
            double x = one.sizes.value[i].number.value, y = two.sizes.value[i].number.value;
            must(!one.sizes.value[i].given || x == y || (x - y) * (x - y) <= 1e-12 * x * x);
        }
    }
    buf_clear(&out);
}

// ---- generation_config.json ----------------------------------------------------------------------

static void try_generation(struct arena *a, const char *text, size_t len)
{
    const char *one[TOKEN_ID_FIELDS], *two[TOKEN_ID_FIELDS];
    struct json *top;
    struct buf out = {0};
    struct err e = {0};
    if (json_parse(a, text, len, &top, &e))
        return;
    int rc = token_ids_read(top, "generation_config.json", a, one, &e);
    must_say(rc, &e);
    must(!rc || strstr(e.text, "generation_config.json"));
    if (!rc) {
        buf_puts(&out, "{\"");
        for (int i = 0; i < TOKEN_ID_FIELDS; i++)
            buf_printf(&out, "%s%s\": %s", i ? ", \"" : "", token_id_fields[i],
                       one[i] ? one[i] : "null");
        buf_puts(&out, "}");
        must(!json_parse(a, buf_str(&out), out.len, &top, &e));
        must(!token_ids_read(top, "it", a, two, &e));
        for (int i = 0; i < TOKEN_ID_FIELDS; i++)
            must(one[i] ? two[i] && strcmp(one[i], two[i]) == 0 : !two[i]);
    }
    buf_clear(&out);
}

// ---- the index -----------------------------------------------------------------------------------

static const char *folder(void)
{
    static char dir[] = "/tmp/weft-fuzz-XXXXXX";
    static const char head[] = "{\"w\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    static bool made;
    char file[64 + sizeof head] = {(char)(sizeof head - 1)};
    struct err e = {0};
    if (made)
        return dir;
    must(mkdtemp(dir) != NULL);
    memcpy(file + 8, head, sizeof head - 1);
    FILE *f = fopen(strcat(strcpy((char[64]){0}, dir), "/a.safetensors"), "wb");
    must(f && fwrite(file, 1, 8 + sizeof head - 1 + 4, f) == 8 + sizeof head - 1 + 4 && !fclose(f));
    must(!folder_write(dir, "b.safetensors", "x", FOLDER_LOOSE, &e));
    made = true;
    return dir;
}

static void remove_folder(void)
{
    folder_remove(folder());
}

static void try_index(const char *text)
{
    struct foreign_files f;
    struct err e = {0};
    static bool once;
    if (!once)
        atexit(remove_folder);
    once = true;
    must(!folder_write(folder(), "model.safetensors.index.json", text, FOLDER_LOOSE, &e));
    int rc = foreign_open(&f, folder(), &e);
    must_say(rc, &e);
    must(rc || f.ntensors == 1);
    foreign_close(&f);
}

// ---- sections ------------------------------------------------------------------------------------

// The elements of all parameters that the pieces name.
static void check_pieces(const struct mapping *m)
{
    int64_t named = 0, all = 0;
    for (int i = 0; i < m->npieces; i++) {
        int64_t n = 1;
        for (int k = 0; k < m->pieces[i].natoms; k++)
            n *= m->pieces[i].atom[k].n;
        named += n;
    }
    for (int i = 0; i < m->params.n; i++) {
        int64_t n = 1;
        for (int d = 0; d < m->params.param[i].shape.n; d++)
            n *= m->params.param[i].size[d];
        all += n;
    }
    must(named == all);
    for (int i = 0; i < m->ntensors; i++) {
        int64_t n = 0, size = 1;
        for (int k = m->first[THEIRS][i]; k < m->first[THEIRS][i + 1]; k++) {
            int64_t one = 1;
            const struct weight_piece *p = &m->pieces[m->piece[THEIRS][k]];
            for (int x = 0; x < p->natoms; x++)
                one *= p->atom[x].n;
            n += one;
        }
        for (int d = 0; d < m->tensors[i].shape.n; d++)
            size *= m->tensors[i].shape.dim[d];
        must(n == size);
    }
}

static void try_section(struct arena *a, const char *section)
{
    static const char *const small[][2] = {
        {"layers", "2"},  {"dense", "1"},  {"embed", "6"}, {"heads", "2"},   {"rotary", "2"},
        {"value", "3"},   {"latent", "4"}, {"mlp", "5"},   {"narrow", "3"},  {"experts", "2"},
        {"choices", "1"}, {"seq", "4"},    {"vocab", "7"}, {"head_dim", "4"}};
    enum { SMALL = sizeof small / sizeof *small };
    const char *text = model_text_find("deepseek-v2-lite")->text;
    const struct model_program *p = read_program(
        "it", arena_printf(a, "%s\n%s", model_text_without_export(text, a), section), a);
    struct model_given given[SMALL];
    struct model_errors errs = {.arena = a};
    struct model_sizes sizes;
    struct weight_params params;
    struct mapping m;
    struct graph g;
    struct err e = {0};
    struct buf out = {0};
    const struct model_run run = {.kind = PROGRAM_TRAIN, .batch = 1, .step_batch = 1};
    for (int i = 0; i < SMALL; i++)
        given[i] = (struct model_given){small[i][0], small[i][1], 0, NULL};
    if (!p || model_sizes_resolve(p, given, SMALL, &sizes, &errs))
        return;
    graph_init(&g, a, NULL, &e);
    if (model_build(&g, &sizes, &run))
        return;
    weight_params_find(&g, a, &params);
    int rc = mapping_make(&m, a, &sizes, &params, true, &e);
    must_say(rc, &e);
    if (!rc)
        check_pieces(&m);
    rc = config_write(&sizes, NULL, 0, a, &out, &e);
    must_say(rc, &e);
    buf_clear(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char *const programs[] = {"gpt2", "llama", "deepseek-v2-lite", "gemma2"};
    struct arena a = {0};
    struct shard_plan plan;
    struct err e = {0};
    char *text = malloc(len + 1);
    if (!text || !len)
        goto out;
    memcpy(text, bytes + 1, len - 1);
    text[len - 1] = 0;
    if (*bytes >= '0' && *bytes <= '3')
        try_config(&a, programs[*bytes - '0'], text, len - 1);
    else if (*bytes == 'g')
        try_generation(&a, text, len - 1);
    else if (*bytes == 'i')
        try_index(text);
    else if (*bytes == 'h')
        must_say(shard_parse(&a, text, len - 1, len - 1, SHARD_FOREIGN, &plan, &e), &e);
    else if (*bytes == 's')
        try_section(&a, text);
out:
    free(text);
    arena_clear(&a);
    return 0;
}
