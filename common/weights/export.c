// SPDX-License-Identifier: Apache-2.0
// From a checkpoint of weft to files that others open. See foreign.h.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/source.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/beside.h"
#include "common/weights/config.h"
#include "common/weights/described.h"
#include "common/weights/foreign.h"
#include "common/weights/half.h"
#include "common/weights/move.h"
#include "common/weights/npz.h"

enum { KEPT_BYTES = 64 << 20 }; // a parameter of at most so many is read once

struct exporting {
    const struct export_options *o;
    struct arena a;
    struct load load;
    struct manifest_source pin; // which it is
    struct described model;
    struct mapping map;
    const struct manifest_tensor **stored; // of each parameter
    bool *checked;
    float *kept; // the whole of parameter `kept_param`
    int kept_param;
    const char *ids[TOKEN_ID_FIELDS]; // of generation_config.json, or of the tokenizer
    struct fresh fresh;
    struct stream file;
    struct npz npz;
    uint16_t *half;
    int64_t half_room;
    uint64_t done, all;
    struct export_result *result;
};

// ---- reading parameters --------------------------------------------------------------------------

static int read_param(void *ctx, int param, const struct box *b, float *to, struct err *e)
{
    struct exporting *x = ctx;
    const struct weight_param *p = &x->model.params.param[param];
    struct box whole = {.shape = p->shape};
    uint64_t bytes = box_bytes(&whole, DT_F32);
    int rc = 0;
    if (bytes > KEPT_BYTES) {
        rc = x->checked[param] ? 0 : load_check(&x->load, x->stored[param], e);
        x->checked[param] = true;
        return rc ? rc : load_read_part(&x->load, x->stored[param], b, to, e);
    }
    if (!x->kept && !(x->kept = malloc(KEPT_BYTES)))
        return err_set(e, ERR_NOMEM, "no memory to read with");
    if (x->kept_param != param)
        rc = load_read(&x->load, p->name, DT_F32, &p->shape, &whole, x->kept, e);
    x->kept_param = rc ? -1 : param;
    if (!rc)
        box_copy(b, to, &whole, x->kept, 0, bytes, sizeof(float));
    return rc;
}

// Every parameter is in the checkpoint, as the model has it.
static int find_stored(struct exporting *x, struct err *e)
{
    const struct weight_params *all = &x->model.params;
    x->stored = arena_array(&x->a, const struct manifest_tensor *, all->n + 1);
    x->checked = arena_array(&x->a, bool, all->n + 1);
    x->kept_param = -1;
    for (int i = 0; i < all->n; i++) {
        const struct manifest_tensor *t = manifest_find(&x->load.manifest, all->param[i].name);
        x->stored[i] = t;
        if (!t || t->dtype != DT_F32 || !shape_equal(&t->shape, &all->param[i].shape))
            return err_set(e, ERR_DATA, "%s: %s %s", x->load.name, all->param[i].name,
                           t ? "has another shape than the model's" : "is not in it");
    }
    return 0;
}

static int note_done(struct exporting *x, uint64_t bytes, struct err *e)
{
    x->done += bytes;
    return x->o->watch.done && x->o->watch.done(x->o->watch.ctx, x->done, x->all)
               ? err_set(e, ERR_ABORTED, "stopped")
               : 0;
}

// ---- safetensors ---------------------------------------------------------------------------------

static int put_elements(void *ctx, const float *from, int64_t n, struct err *e)
{
    struct exporting *x = ctx;
    int rc;
    if (x->o->bf16) {
        if (n > x->half_room) {
            free(x->half);
            x->half = malloc((size_t)n * sizeof *x->half);
            x->half_room = x->half ? n : 0;
        }
        if (!x->half)
            return err_set(e, ERR_NOMEM, "no memory to write with");
        for (int64_t i = 0; i < n; i++)
            x->half[i] = bf16_of_float(from[i]);
        rc = stream_write(&x->file, x->half, (size_t)n * sizeof *x->half, e);
    } else {
        rc = stream_write(&x->file, from, (size_t)n * sizeof *from, e);
    }
    return rc ? rc : note_done(x, (uint64_t)n * (x->o->bf16 ? 2 : 4), e);
}

// How many tensors from `first` on one file holds.
static int count_in_file(const struct exporting *x, const struct shard_slice *all, int first)
{
    uint64_t bytes = all[first].bytes;
    int n = 1;
    while (first + n < x->map.ntensors && bytes + all[first + n].bytes <= x->o->shard_bytes)
        bytes += all[first + n++].bytes;
    return n;
}

static int write_file(struct exporting *x, int dir, const char *name, const struct shard_slice *all,
                      int first, int n, struct err *e)
{
    static const struct shard_meta format = {"format", "pt"};
    struct mover move = {
        .map = &x->map, .to = THEIRS, .read = read_param, .put = put_elements, .ctx = x};
    struct shard_plan plan = {0};
    struct hash128 digest;
    int rc = shard_plan_make(&x->a, all + first, n, &format, 1, &plan, e);
    rc = rc ? rc : stream_create(&x->file, dir, name, e);
    rc = rc ? rc : shard_write_head(&x->file, &plan, &digest, e);
    for (int i = 0; i < n && !rc; i++)
        rc = move_object(&move, first + i, e);
    if (!rc)
        rc = stream_sync(&x->file, e);
    int closed = stream_close(&x->file, rc ? NULL : e);
    mover_clear(&move);
    shard_plan_clear(&plan);
    if (rc)
        err_wrap(e, "%s", name);
    return rc ? rc : closed;
}

static int write_index(struct exporting *x, int dir, const char *const *file, struct err *e)
{
    struct buf text = {0};
    struct json_out w;
    json_out_init(&w, &text);
    w.pretty = true;
    json_object(&w, NULL);
    json_object(&w, "metadata");
    json_uint(&w, "total_size", x->all);
    json_end(&w);
    json_object(&w, "weight_map");
    for (int i = 0; i < x->map.ntensors; i++)
        json_str(&w, x->map.tensors[i].name, file[i]);
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(&text, '\n');
    int rc = durable_write_file(dir, "model.safetensors.index.json", text.data, text.len, e);
    buf_clear(&text);
    return rc;
}

static int write_tensors(struct exporting *x, int dir, struct err *e)
{
    struct shard_slice *all = arena_array(&x->a, struct shard_slice, x->map.ntensors + 1);
    const char **file = arena_array(&x->a, const char *, x->map.ntensors + 1);
    int files = 0, rc = 0;
    for (int i = 0; i < x->map.ntensors; i++) {
        const struct weight_tensor *t = &x->map.tensors[i];
        struct box whole = {.shape = t->shape};
        all[i] = (struct shard_slice){
            .name = t->name, .dtype = x->o->bf16 ? DT_BF16 : DT_F32, .shape = t->shape};
        all[i].bytes = box_bytes(&whole, all[i].dtype);
        x->all += all[i].bytes;
    }
    for (int i = 0; i < x->map.ntensors; i += count_in_file(x, all, i))
        files++;
    for (int i = 0, k = 1, n; i < x->map.ntensors && !rc; i += n, k++) {
        n = count_in_file(x, all, i);
        const char *name = files == 1
                               ? "model.safetensors"
                               : arena_printf(&x->a, "model-%05d-of-%05d.safetensors", k, files);
        for (int j = 0; j < n; j++)
            file[i + j] = name;
        rc = write_file(x, dir, name, all, i, n, e);
    }
    *x->result = (struct export_result){x->load.manifest.step, x->map.ntensors, files, x->all};
    return rc || files < 2 ? rc : write_index(x, dir, file, e);
}

// ---- config.json ---------------------------------------------------------------------------------

// The token id that is given for a field: the last one. Null: none is.
static const char *find_given(const struct exporting *x, const char *field)
{
    const char *json = NULL;
    for (int i = 0; i < x->o->nmembers; i++)
        if (strcmp(x->o->members[i].name, field) == 0)
            json = x->o->members[i].json;
    return json;
}

static int read_generation(struct exporting *x, const char *tokenizer, struct json **top,
                           struct err *e)
{
    struct buf text = {0};
    const char *path = arena_printf(&x->a, "%s/generation_config.json", tokenizer);
    *top = NULL;
    int rc = folder_read_whole(AT_FDCWD, path, true, 1 << 20, &text, e);
    rc = rc ? rc : json_parse(&x->a, buf_str(&text), text.len, top, e);
    buf_clear(&text);
    if (rc == ERR_NOTFOUND)
        return 0;
    return rc ? err_wrap(e, "%s", path) : token_ids_read(*top, path, &x->a, x->ids, e);
}

// What a tokenizer says where nobody gave an id: the token of its end, which begins a text too where
// it is GPT-2's.
static void ask_tokenizer(struct exporting *x, const char *tokenizer)
{
    struct tokenizer *t = NULL;
    int32_t end = -1;
    if (tokenizer_open(&t, tokenizer, NULL) || tokenizer_find_end(t, NULL, &end, NULL))
        end = -1;
    const char *json = end < 0 ? NULL : arena_printf(&x->a, "%d", (int)end);
    x->ids[0] = json && tokenizer_id(t, "<|endoftext|>") == end ? json : NULL;
    x->ids[1] = json;
    tokenizer_close(t);
}

// Token ids that are given, else those that generation_config.json beside the checkpoint has, else the
// tokenizer's. bos_token_id and eos_token_id are always written: a reader's own defaults may be outside
// of the vocabulary.
static int list_members(struct exporting *x, const char *tokenizer, struct config_member *out,
                        int *n, struct err *e)
{
    const char *dtype = x->o->bf16 ? "\"bfloat16\"" : "\"float32\"";
    struct json *generation;
    *n = 0;
    out[(*n)++] = (struct config_member){"torch_dtype", dtype};
    out[(*n)++] = (struct config_member){"dtype", dtype};
    int rc = read_generation(x, tokenizer, &generation, e);
    if (!rc && !x->ids[0] && !x->ids[1])
        ask_tokenizer(x, tokenizer);
    for (int i = 0; i < TOKEN_ID_FIELDS; i++) {
        const char *json = find_given(x, token_id_fields[i]);
        json = json ? json : x->ids[i];
        if (json || strcmp(token_id_fields[i], "pad_token_id") != 0)
            out[(*n)++] = (struct config_member){token_id_fields[i], json ? json : "null"};
    }
    return rc;
}

// The copy of generation_config.json has the ids that are given, as config.json has.
static int give_generation(struct exporting *x, const char *tokenizer, struct err *e)
{
    struct json *top;
    struct buf text = {0};
    struct json_out w;
    int rc = x->o->nmembers ? read_generation(x, tokenizer, &top, e) : 0;
    if (rc || !x->o->nmembers || !top)
        return rc;
    json_out_init(&w, &text);
    w.pretty = true;
    json_object(&w, NULL);
    for (const struct json *k = top->first; k; k = k->next)
        if (!find_given(x, k->key))
            json_value(&w, k->key, k);
    for (int i = 0; i < TOKEN_ID_FIELDS; i++)
        if (find_given(x, token_id_fields[i]))
            json_raw(&w, token_id_fields[i], find_given(x, token_id_fields[i]));
    json_end(&w);
    json_out_clear(&w);
    buf_putc(&text, '\n');
    rc = folder_write(x->fresh.tmp, "generation_config.json", buf_str(&text), FOLDER_DURABLE, e);
    buf_clear(&text);
    return rc;
}

static int write_config(struct exporting *x, int dir, const char *tokenizer, struct err *e)
{
    struct config_member more[2 + TOKEN_ID_FIELDS];
    struct buf text = {0};
    int n, rc = list_members(x, tokenizer, more, &n, e);
    rc = rc ? rc : config_write(&x->model.sizes, more, n, &x->a, &text, e);
    rc = rc ? rc : durable_write_file(dir, "config.json", buf_str(&text), text.len, e);
    buf_clear(&text);
    return rc;
}

// The tokenizer beside a checkpoint is the one that it was trained with.
static int check_tokenizer(const struct exporting *x, const char *tokenizer, struct err *e)
{
    const char *trained = x->load.manifest.tokenizer;
    char beside[TOKENIZER_IDENTITY_LEN];
    if (!*trained || tokenizer_identify(NULL, tokenizer, beside, NULL) ||
        strcmp(trained, beside) == 0)
        return 0;
    return err_set(e, ERR_DATA, "%s is %s, and %s was trained with %s", tokenizer, beside,
                   x->load.name, trained);
}

// ---- the whole -----------------------------------------------------------------------------------

static int write_hf(struct exporting *x, int dir, struct err *e)
{
    const char *tokenizer = arena_printf(&x->a, "%s/" STORE_TOKENIZER, x->pin.folder);
    int files, rc = mapping_make(&x->map, &x->a, &x->model.sizes, &x->model.params, true, e);
    rc = rc ? rc : check_tokenizer(x, tokenizer, e);
    rc = rc ? rc : write_config(x, dir, tokenizer, e);
    rc = rc ? rc : beside_copy(tokenizer, x->fresh.tmp, &files, e);
    rc = rc ? rc : give_generation(x, tokenizer, e);
    return rc ? rc : write_tensors(x, dir, e);
}

static int put_npz(void *ctx, const float *from, int64_t n, struct err *e)
{
    struct exporting *x = ctx;
    int rc = npz_put(&x->npz, from, (uint64_t)n * sizeof *from, e);
    return rc ? rc : note_done(x, (uint64_t)n * sizeof *from, e);
}

// Parameters as weft names them, without padding.
static int write_npz(struct exporting *x, int dir, struct err *e)
{
    struct mover move = {
        .map = &x->map, .to = THEIRS, .read = read_param, .put = put_npz, .ctx = x};
    mapping_same(&x->map, &x->a, &x->model.params);
    int rc = npz_open(&x->npz, dir, "model.npz", e);
    for (int i = 0; i < x->map.ntensors; i++) {
        struct box whole = {.shape = x->map.tensors[i].shape};
        x->all += box_bytes(&whole, DT_F32);
    }
    for (int i = 0; i < x->map.ntensors && !rc; i++) {
        rc = npz_begin(&x->npz, x->map.tensors[i].name, &x->map.tensors[i].shape, e);
        if (!rc)
            rc = move_object(&move, i, e);
        if (!rc)
            rc = npz_end(&x->npz, e);
    }
    rc = npz_close(&x->npz, rc, e);
    mover_clear(&move);
    *x->result = (struct export_result){x->load.manifest.step, x->map.ntensors, 1, x->all};
    return rc;
}

int weights_export(const struct export_options *o, struct export_result *out, struct err *e)
{
    struct exporting x = {.o = o, .result = out};
    int rc = source_open(&x.load, NULL, o->checkpoint, o->step, &x.a, &x.pin, e);
    *out = (struct export_result){0};
    if (!rc)
        rc = described_read(&x.model, &x.a, x.load.manifest.resolved, o->program, e);
    if (!rc)
        rc = find_stored(&x, e);
    if (!rc)
        rc = fresh_begin(&x.fresh, o->dir, &x.a, e);
    if (!rc)
        rc = o->npz ? write_npz(&x, x.fresh.fd, e) : write_hf(&x, x.fresh.fd, e);
    if (!rc)
        rc = fresh_end(&x.fresh, o->dir, e);
    fresh_clear(&x.fresh);
    free(x.kept);
    free(x.half);
    load_close(&x.load);
    arena_clear(&x.a);
    return rc;
}
