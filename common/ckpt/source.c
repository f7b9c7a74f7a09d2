// SPDX-License-Identifier: Apache-2.0
// Finding, pinning and opening where a training begins. See source.h.
//
//   SOURCE   {"folder": "/ckpt/base-0123abcd", "attempt": 2, "step": 200, "sha256": "…"}
#include "common/ckpt/source.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/json.h"
#include "common/base/path.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/store_names.h"

enum { SOURCE_MAX_BYTES = 8192 };
#define SOURCE "SOURCE"

void source_split(const char *from, struct arena *a, const char **place, int64_t *step)
{
    const char *at = strrchr(from, '@');
    char *end = NULL;
    *step = -1;
    *place = from;
    size_t digits = at ? strspn(at + 1, "0123456789") : 0;
    if (!digits || digits > 15 || at[1 + digits] || at == from)
        return;
    *step = strtoll(at + 1, &end, 10);
    *place = arena_printf(a, "%.*s", (int)(at - from), from);
}

bool source_is_path(const char *place)
{
    return place[0] == '.' || strchr(place, '/');
}

const char *source_path(const char *place)
{
    while (place[0] == '.' && place[1] == '/' && place[2])
        place += 2;
    return place;
}

// ---- finding ----

static int open_entry(struct load *l, const struct store *s, const struct store_entry *id,
                      struct err *e)
{
    int rc = load_open(l, s, id->attempt, id->step, e);
    if (!rc && (rc = load_check_heads(l, e)))
        load_close(l);
    return rc;
}

// A folder without checkpoints may be what others wrote, or a checkpoint that was renamed.
static void explain_none(const struct store *s, struct err *e)
{
    if (!faccessat(s->fd, "config.json", F_OK, 0))
        err_wrap(e, "`weft import` makes a checkpoint of what transformers wrote");
    else if (!faccessat(s->fd, "MANIFEST.json", F_OK, 0))
        err_wrap(e, "a checkpoint keeps its name, such as step-00000200.a1");
}

int source_open(struct load *l, const char *root, const char *path, int64_t step, struct arena *a,
                struct manifest_source *pin, struct err *e)
{
    struct store s = {.fd = -1};
    struct store_entry id;
    char *whole = arena_strdup(a, path), folder[PATH_MAX];
    *l = (struct load){.dirfd = -1};
    for (size_t n = strlen(whole); n > 1 && whole[n - 1] == '/'; n--)
        whole[n - 1] = 0;
    path_folder(whole, folder, sizeof folder);
    bool one = store_entry_parse(path_name(whole), &id);
    if (one && step >= 0 && step != id.step)
        return err_set(e, ERR_INVALID, "%s is no checkpoint of step %lld", path, (long long)step);
    int rc = store_open(&s, root, one ? folder : path, e);
    if (!rc && !one && step >= 0) {
        rc = store_find_step(&s, step, &id, e);
        one = true;
    }
    if (!rc)
        rc = one ? open_entry(l, &s, &id, e)
                 : load_open_newest(l, &s, load_check_heads, NULL, NULL, e);
    if (rc == ERR_NOTFOUND && s.fd >= 0 && !one)
        explain_none(&s, e);
    if (!rc)
        *pin = (struct manifest_source){arena_strdup(a, s.path), l->manifest.attempt,
                                        l->manifest.step, arena_strdup(a, l->digest)};
    store_close(&s);
    return rc;
}

int source_open_pinned(struct load *l, const char *root, const struct manifest_source *pin,
                       struct err *e)
{
    struct store s = {.fd = -1};
    char name[64];
    *l = (struct load){.dirfd = -1};
    store_entry_name(pin->attempt, pin->step, name);
    int rc = store_open(&s, root, pin->folder, e);
    rc = rc ? rc : load_open(l, &s, pin->attempt, pin->step, e);
    if (!rc && strcmp(l->digest, pin->digest) != 0) {
        load_close(l);
        rc = err_set(e, ERR_INVALID, "another checkpoint lies there now");
    }
    store_close(&s);
    if (rc == ERR_NOTFOUND)
        rc = e ? (e->code = ERR_INVALID) : ERR_INVALID; // no other try helps
    return rc ? err_wrap(e, "this training began with %s/%s: put it back, or start over",
                         pin->folder, name)
              : 0;
}

// ---- the tokenizer ----

static bool is_known(const char *identity)
{
    return *identity && strcmp(identity, "ids") != 0;
}

// Why the job's tokenizer, which is another than the checkpoint's, is none that extends it.
static int check_extension(const char *root, const struct manifest_source *pin, const char *trained,
                           const struct tokenizer *job, struct err *e)
{
    struct tokenizer *kept = NULL;
    struct buf path = {0};
    int32_t differs = -1;
    int rc = 0;
    buf_printf(&path, "%s/" STORE_TOKENIZER, pin->folder);
    if (tokenizer_is_file(trained) && job)
        rc = tokenizer_open_beneath(&kept, root, path.data, e);
    if (rc)
        err_wrap(e, "whether one extends the other cannot be seen");
    else if (kept && strcmp(tokenizer_identity(kept), trained) != 0)
        rc = err_set(e, ERR_INVALID, "%s holds neither", path.data);
    else if (!kept || !tokenizer_extends(job, kept, &differs))
        rc = differs < 0 ? err_set(e, ERR_INVALID, "neither extends the other")
                         : err_set(e, ERR_INVALID, "token %d is not the same", (int)differs);
    tokenizer_close(kept);
    buf_clear(&path);
    return rc == ERR_IO ? rc : rc ? ERR_INVALID : 0; // what the storage has at times may pass
}

int source_check_tokenizer(const struct load *l, const char *root,
                           const struct manifest_source *pin, const char *vocab,
                           const struct source_tokenizer *job, struct buf *note, struct err *e)
{
    const char *trained = l->manifest.tokenizer;
    struct err why = {0};
    if (!is_known(trained) || !is_known(job->identity) || strcmp(trained, job->identity) == 0)
        return 0;
    if (vocab && check_extension(root, pin, trained, job->open, &why))
        return err_set(
            e, ERR_INVALID,
            "%s was trained with tokenizer %s, and the data's is %s (%.400s): prepare the "
            "data with the checkpoint's, or leave the parameters of the vocabulary out of "
            "checkpoint.load.params",
            vocab, trained, job->identity, why.text);
    buf_printf(note, "; the data's tokenizer, %s, %s the checkpoint's, %s", job->identity,
               vocab ? "extends" : "is not", trained);
    return 0;
}

// ---- SOURCE ----

int source_pin(const struct store *job, struct arena *a, struct manifest_source *pin, struct err *e)
{
    struct buf text = {0};
    struct json_out w;
    json_out_init(&w, &text);
    json_object(&w, NULL);
    json_str(&w, "folder", pin->folder);
    json_int(&w, "attempt", pin->attempt);
    json_int(&w, "step", pin->step);
    json_str(&w, "sha256", pin->digest);
    json_end(&w);
    json_out_clear(&w);
    int rc = store_write_whole(job, SOURCE, false, buf_str(&text), text.len, e);
    if (rc == ERR_EXISTS)
        rc = source_read(job, a, pin, e);
    if (!rc)
        rc = durable_fsync(job->fd, job->path, e);
    buf_clear(&text);
    return rc ? err_wrap(e, "cannot write " SOURCE) : 0;
}

int source_parse(struct arena *a, const char *text, size_t len, struct manifest_source *pin,
                 struct err *e)
{
    struct json *top = NULL;
    *pin = (struct manifest_source){.step = -1};
    if (json_parse(a, text, len, &top, e) || top->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "it is no JSON object");
    if (json_get_str(top, "folder", &pin->folder, e) ||
        json_get_int(top, "attempt", &pin->attempt, e) ||
        json_get_int(top, "step", &pin->step, e) || json_get_str(top, "sha256", &pin->digest, e) ||
        pin->attempt < 0 || !store_entry_ok((uint64_t)pin->attempt, pin->step))
        return err_set(e, ERR_DATA, "it is damaged: it names no checkpoint");
    return 0;
}

int source_read(const struct store *job, struct arena *a, struct manifest_source *pin,
                struct err *e)
{
    struct buf text = {0};
    int rc = folder_read_whole(job->fd, SOURCE, true, SOURCE_MAX_BYTES, &text, e);
    if (!rc)
        rc = source_parse(a, buf_str(&text), text.len, pin, e);
    buf_clear(&text);
    return rc && rc != ERR_NOTFOUND ? err_wrap(e, "%s/" SOURCE, job->path) : rc;
}
