// SPDX-License-Identifier: Apache-2.0
// From files of others to a checkpoint of step 0. See foreign.h.
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/path.h"
#include "common/base/system.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/store.h"
#include "common/plan/schema_list.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/beside.h"
#include "common/weights/config.h"
#include "common/weights/described.h"
#include "common/weights/foreign.h"
#include "common/weights/foreign_files.h"
#include "common/weights/move.h"

enum { SAME_CHUNK = 4 << 20 }; // elements that are compared at once

struct importing {
    const struct import_options *o;
    struct arena *a;
    struct foreign_files files;
    const struct json *config;
    const struct model_program *program;
    struct config_sizes sizes;
    struct described model;
    struct mapping map;
    struct foreign_stored **stored; // of each tensor
    const char *job_text, *resolved;
    struct fresh fresh;
    struct stream file;
    const char *ids[TOKEN_ID_FIELDS];
    bool has_generation; // the folder has a generation_config.json
    uint64_t done, all;
    struct import_result *result;
    char identity[TOKENIZER_IDENTITY_LEN]; // of the tokenizer among the files; empty: none
};

// ---- the program ---------------------------------------------------------------------------------

// Of weft's own the first whose lines say this class and take this config.
static int choose_program(struct importing *x, struct err *e)
{
    const struct json *classes = json_get(x->config, "architectures");
    const char *class = classes && classes->type == JSON_ARRAY && classes->first &&
                                classes->first->type == JSON_STRING
                            ? classes->first->string
                            : NULL;
    struct err first = {0};
    if (!class)
        return err_set(e, ERR_DATA, "config.json: architectures names no class: say --program");
    for (const struct model_text *t = model_texts; t->name; t++) {
        struct err one = {0};
        const struct model_program *p;
        int rc = described_program(t->name, x->a, &p, e);
        if (rc)
            return rc;
        if (!config_is_of(p, class))
            continue;
        x->program = p;
        if (!config_read(p, x->config, x->a, &x->sizes, &one))
            return 0;
        first = first.code ? first : one;
    }
    if (!first.code)
        return err_set(e, ERR_DATA,
                       "config.json: architectures: no program that comes with weft is a %.100s: "
                       "--program names one "
                       "of your own with a section `export hf`",
                       class);
    return err_set(e, first.code, "%s", first.text);
}

static int read_config(struct importing *x, struct err *e)
{
    struct json *top;
    int rc = foreign_json(&x->files, "config.json", &top, e);
    if (rc)
        return rc;
    x->config = top;
    if (!x->o->program)
        return choose_program(x, e);
    rc = described_program(x->o->program, x->a, &x->program, e);
    return rc ? rc : config_read(x->program, x->config, x->a, &x->sizes, e);
}

// ---- the job -------------------------------------------------------------------------------------

// A text between YAML's single quotes.
static const char *quote_inside(const char *text, struct arena *a)
{
    struct buf out = {0};
    for (; *text; text++)
        buf_printf(&out, *text == '\'' ? "%c'" : "%c", *text);
    return buf_keep(&out, a);
}

// A job to start from: the model with its sizes, and what a person then says.
static int make_job(struct importing *x, struct err *e)
{
    const char *name = path_name(x->o->out);
    char path[PATH_MAX];
    struct job_errors errs = {0};
    struct buf text = {0};
    if (!folder_name_ok(name))
        name = "imported";
    bool own = !model_text_find(x->program->name);
    if (own && !realpath(x->program->name, path))
        return err_errno(e, ERR_IO, "cannot find %s", x->program->name);
    buf_printf(&text, "name: '%s'\nmodel:\n  program: ", name);
    buf_printf(&text, "'%s'\n", quote_inside(own ? path : x->program->name, x->a));
    for (int i = 0; i < x->sizes.n; i++)
        buf_printf(&text, "  %s: %s\n", x->sizes.given[i].name, x->sizes.given[i].text);
    buf_puts(&text, "data: {format: tokens, train: {tokens: train.tokens}, batch: 8}\n"
                    "train: {steps: 1000}\n");
    x->job_text = buf_keep(&text, x->a);
    if (job_parse(x->a, &weft_schema, "job.yaml", NULL, x->job_text, strlen(x->job_text), NULL, 0,
                  &x->model.job, &errs)) {
        job_errors_err(&errs, e);
        err_wrap(e, "config.json: the model of these sizes");
        return ERR_DATA;
    }
    struct buf resolved = {0};
    job_print(&x->model.job, &resolved);
    x->resolved = buf_keep(&resolved, x->a);
    return described_build(&x->model, x->a, e);
}

// ---- accounts ------------------------------------------------------------------------------------

static int refuse_tensor(struct importing *x, const struct foreign_stored *t, struct err *e,
                         const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int refuse_tensor(struct importing *x, const struct foreign_stored *t, struct err *e,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *what = arena_vprintf(x->a, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_DATA, "%s: tensor '%.200s' %s", x->files.files[t->file].name,
                   t->slice.name, what);
}

static int check_tensor(struct importing *x, int i, struct err *e)
{
    const struct weight_tensor *t = &x->map.tensors[i];
    struct foreign_stored *s = x->stored[i] = foreign_find(&x->files, t->name);
    if (!s)
        return err_set(e, ERR_DATA, "tensor '%s' is missing: line %d of %s makes it", t->name,
                       t->line, x->program->name);
    s->used = true;
    if (!shape_equal(&s->slice.shape, &t->shape))
        return refuse_tensor(x, s, e, "is %s, and the model's is %s",
                             shape_text(s->slice.shape.dim, s->slice.shape.n, x->a),
                             shape_text(t->shape.dim, t->shape.n, x->a));
    if (s->slice.dtype != DT_F32 && s->slice.dtype != DT_BF16 && strcmp(s->slice.type, "F16") != 0)
        return refuse_tensor(x, s, e, "is %s: weights are F32, BF16 or F16", s->slice.type);
    return 0;
}

// One that may be stored and must be equal to another.
static int check_same(struct importing *x, const struct foreign_stored *t,
                      const struct foreign_stored *like, struct err *e)
{
    float *a = malloc(SAME_CHUNK * sizeof *a), *b = malloc(SAME_CHUNK * sizeof *b);
    struct box whole = {.shape = t->slice.shape}, part = {.shape.n = 1};
    struct shape flat = {.n = 1, .dim = {(int64_t)box_bytes(&whole, DT_U8)}};
    int rc = a && b ? 0 : err_set(e, ERR_NOMEM, "no memory to read with");
    if (!rc && (!shape_equal(&t->slice.shape, &like->slice.shape) ||
                strcmp(t->slice.type, like->slice.type) != 0))
        rc =
            refuse_tensor(x, t, e, "is not like '%s', which it must be equal to", like->slice.name);
    for (int64_t at = 0; at < flat.dim[0] && !rc; at += SAME_CHUNK) {
        int64_t n = flat.dim[0] - at < SAME_CHUNK ? flat.dim[0] - at : SAME_CHUNK;
        part.start[0] = at;
        part.shape.dim[0] = n;
        rc = foreign_read(&x->files, t, &flat, &part, a, e);
        if (!rc)
            rc = foreign_read(&x->files, like, &flat, &part, b, e);
        if (!rc && memcmp(a, b, (size_t)n * sizeof *a) != 0)
            rc = refuse_tensor(x, t, e, "is not equal to '%s': the program has one for both",
                               like->slice.name);
    }
    free(a);
    free(b);
    return rc;
}

static int check_left(struct importing *x, const struct foreign_stored *t, struct err *e)
{
    for (int i = 0; i < x->map.ndrops; i++) {
        const struct weight_drop *d = &x->map.drops[i];
        if (!weight_name_matches(d->pattern, t->slice.name))
            continue;
        return d->like < 0 ? 0 : check_same(x, t, x->stored[d->like], e);
    }
    return refuse_tensor(x, t, e, "is left over: %s has no line for it", x->program->name);
}

// Whether any tensor has the prefix of the section's lines.
static bool has_prefix(const struct importing *x)
{
    const char *prefix = foreign_section(x->program)->prefix;
    bool any = false;
    for (int i = 0; i < x->files.ntensors && !any; i++)
        any = strncmp(x->files.tensors[i].slice.name, prefix, strlen(prefix)) == 0;
    return any;
}

static int check_tensors(struct importing *x, struct err *e)
{
    int rc = mapping_make(&x->map, x->a, &x->model.sizes, &x->model.params, has_prefix(x), e);
    x->stored = arena_array(x->a, struct foreign_stored *, x->map.ntensors + 1);
    for (int i = 0; i < x->map.ntensors && !rc; i++)
        rc = check_tensor(x, i, e);
    for (int i = 0; i < x->files.ntensors && !rc; i++)
        if (!x->files.tensors[i].used)
            rc = check_left(x, &x->files.tensors[i], e);
    return rc;
}

// ---- writing -------------------------------------------------------------------------------------

static int read_tensor(void *ctx, int tensor, const struct box *b, float *to, struct err *e)
{
    struct importing *x = ctx;
    return foreign_read(&x->files, x->stored[tensor], &x->map.tensors[tensor].view, b, to, e);
}

static int put_elements(void *ctx, const float *from, int64_t n, struct err *e)
{
    struct importing *x = ctx;
    uint64_t bytes = (uint64_t)n * sizeof *from;
    int rc = stream_write(&x->file, from, bytes, e);
    x->done += bytes;
    if (!rc && x->o->watch.done && x->o->watch.done(x->o->watch.ctx, x->done, x->all))
        rc = err_set(e, ERR_ABORTED, "stopped");
    return rc;
}

static int write_shard(struct importing *x, int dir, struct shard_report *report, struct err *e)
{
    const struct weight_params *all = &x->model.params;
    struct mover move = {
        .map = &x->map, .to = OURS, .read = read_tensor, .put = put_elements, .ctx = x};
    struct shard_slice *slice = arena_array(x->a, struct shard_slice, all->n + 1);
    struct shard_plan plan = {0};
    char name[64];
    for (int i = 0; i < all->n; i++)
        slice[i] = (struct shard_slice){
            .name = all->param[i].name, .dtype = DT_F32, .shape = all->param[i].shape};
    manifest_file_name(0, 1, name);
    int rc = shard_plan_make(x->a, slice, all->n, NULL, 0, &plan, e);
    rc = rc ? rc : stream_create(&x->file, dir, name, e);
    rc = rc ? rc : shard_write_head(&x->file, &plan, &report->head_digest, e);
    report->head_bytes = plan.head.len;
    report->bytes = x->all = plan.bytes;
    report->digests = arena_array(x->a, struct hash128, all->n + 1);
    for (report->n = 0; report->n < all->n && !rc; report->n++) {
        stream_digest_reset(&x->file);
        rc = move_object(&move, report->n, e);
        if (!rc)
            report->digests[report->n] = stream_digest(&x->file);
    }
    if (!rc)
        rc = stream_sync(&x->file, e);
    int closed = stream_close(&x->file, rc ? NULL : e);
    mover_clear(&move);
    shard_plan_clear(&plan);
    return rc ? rc : closed;
}

static int write_checkpoint(struct importing *x, struct store *s, const struct store_owner *owner,
                            struct err *e)
{
    static const int rank = 0;
    const struct weight_params *all = &x->model.params;
    struct deal_part *parts = arena_array(x->a, struct deal_part, all->n + 1);
    const char **specs = arena_array(x->a, const char *, all->n + 1);
    struct shard_report report = {0};
    struct deal deal;
    char hash[65];
    job_hash(&x->model.job, hash);
    struct manifest m = {.cluster = owner->cluster,
                         .job = owner->job,
                         .name = owner->name,
                         .job_hash = hash,
                         .run = "import",
                         .attempt = 1,
                         .seed = (uint64_t)x->model.job.train.seed,
                         .tokenizer = x->identity,
                         .optimizer = "none", // no state of one is in it
                         .parent_attempt = -1,
                         .parent_step = -1,
                         .resolved = x->resolved,
                         .numerics = {.backend = "import",
                                      .device = "",
                                      .isa = "",
                                      .libraries = "",
                                      .algorithms = "",
                                      .collectives = "",
                                      .deterministic = true}};
    for (int i = 0; i < all->n; i++) {
        parts[i] = (struct deal_part){.name = all->param[i].name,
                                      .dtype = DT_F32,
                                      .global = all->param[i].shape,
                                      .box = {.shape = all->param[i].shape},
                                      .nranks = 1,
                                      .ranks = &rank};
        memcpy(parts[i].limit, all->param[i].size, sizeof parts[i].limit);
        specs[i] = "[]";
    }
    int tmp = -1, rc = deal_make(x->a, parts, all->n, 1, &deal, e);
    rc = rc ? rc : store_begin(s, m.attempt, m.step, &tmp, e);
    rc = rc ? rc : write_shard(x, tmp, &report, e);
    rc = rc ? rc : store_sync_shard(s, tmp, e);
    rc = rc ? rc : manifest_fill(&m, x->a, parts, specs, all->n, &deal, &report, e);
    rc = rc ? rc : store_commit(s, &m, e);
    system_close(&tmp);
    return rc;
}

// Token ids of generation_config.json, or of config.json where there is none; both are checked.
static int read_token_ids(struct importing *x, struct err *e)
{
    struct json *top;
    struct err none = {0};
    int rc = foreign_json(&x->files, "generation_config.json", &top, &none);
    if (rc && rc != ERR_NOTFOUND)
        return err_set(e, rc, "%s", none.text);
    x->has_generation = !rc;
    rc = token_ids_read(x->config, "config.json", x->a, x->ids, e);
    if (!rc && x->has_generation)
        rc = token_ids_read(top, "generation_config.json", x->a, x->ids, e);
    return rc;
}

// Where the folder has no generation_config.json, the token ids of config.json make one.
static int write_token_ids(struct importing *x, const char *tokenizer, struct err *e)
{
    struct buf text = {0};
    struct json_out w;
    bool any = false;
    json_out_init(&w, &text);
    w.pretty = true;
    json_object(&w, NULL);
    for (int i = 0; i < TOKEN_ID_FIELDS; i++) {
        any |= x->ids[i] != NULL;
        if (x->ids[i])
            json_raw(&w, token_id_fields[i], x->ids[i]);
    }
    json_end(&w);
    json_out_clear(&w);
    buf_putc(&text, '\n');
    any &= !x->has_generation;
    int rc = any && access(tokenizer, F_OK) ? folder_make(tokenizer, e) : 0;
    if (any && !rc)
        rc = folder_write(tokenizer, "generation_config.json", buf_str(&text), FOLDER_DURABLE, e);
    buf_clear(&text);
    return rc;
}

static int write_all(struct importing *x, struct err *e)
{
    char id[65];
    struct store s = {0};
    const char *tokenizer = arena_printf(x->a, "%s/" STORE_TOKENIZER, x->fresh.tmp);
    sha256_hex(x->resolved, strlen(x->resolved), id);
    id[32] = 0;
    const struct store_owner owner = {
        .cluster = "import", .job = id, .name = x->model.job.name, .resolved = x->resolved};
    if (tokenizer_identify(NULL, x->o->dir, x->identity, NULL))
        x->identity[0] = 0; // there is none, or one that is only copied
    int files, rc = store_make_at(&s, x->fresh.tmp, &owner, e);
    rc = rc ? rc : write_checkpoint(x, &s, &owner, e);
    store_close(&s);
    if (!rc)
        rc = beside_copy(x->o->dir, tokenizer, &files, e);
    if (!rc)
        rc = write_token_ids(x, tokenizer, e);
    char at[PATH_MAX];
    if (!rc && !realpath(x->fresh.tmp, at))
        rc = err_errno(e, ERR_IO, "cannot find %s", x->fresh.tmp);
    if (rc)
        return rc;
    at[strlen(at) - strlen(FRESH_SUFFIX)] = 0; // the name that it will have
    const char *text =
        arena_printf(x->a, "%scheckpoint: {from: '%s'}\n", x->job_text, quote_inside(at, x->a));
    return folder_write(x->fresh.tmp, "job.yaml", text, FOLDER_DURABLE, e);
}

int weights_import(const struct import_options *o, struct arena *a, struct import_result *out,
                   struct err *e)
{
    struct importing x = {.o = o, .a = a, .result = out};
    int rc = foreign_open(&x.files, o->dir, e);
    if (rc)
        return rc;
    rc = read_config(&x, e);
    rc = rc ? rc : make_job(&x, e);
    rc = rc ? rc : check_tensors(&x, e);
    rc = rc ? rc : read_token_ids(&x, e);
    if (rc)
        err_wrap(e, "%s", o->dir);
    if (!rc)
        rc = fresh_begin(&x.fresh, o->out, a, e);
    if (!rc)
        rc = write_all(&x, e);
    if (!rc)
        rc = fresh_end(&x.fresh, o->out, e);
    fresh_clear(&x.fresh);
    *out = (struct import_result){x.program ? x.program->name : NULL,
                                  arena_printf(a, "%s/job.yaml", o->out), x.files.ntensors,
                                  x.model.params.n, x.all};
    foreign_close(&x.files);
    return rc;
}
