// SPDX-License-Identifier: Apache-2.0
// Listing and verifying checkpoint directories. See ls.h.
#include "common/ckpt/ls.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/path.h"
#include "common/base/plain.h"
#include "common/ckpt/commit.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/load.h"
#include "common/ckpt/store_names.h"

// ---- collecting ----
struct errors {
    struct ls *ls;
    struct ls_item *item;
    int cap;
};

static void add_error(void *arg, const struct err *e)
{
    struct errors *x = arg;
    x->item->errors = arena_grow(&x->ls->arena, x->item->errors, sizeof *x->item->errors,
                                 x->item->nerrors, &x->cap);
    x->item->errors[x->item->nerrors++] = arena_strdup(&x->ls->arena, e->text);
    x->item->ok = false;
}

static struct ls_item *add_item(struct ls *l, const char *dir, struct store_entry id,
                                bool committed)
{
    l->items = arena_grow(&l->arena, l->items, sizeof *l->items, l->n, &l->cap);
    struct ls_item *i = &l->items[l->n++];
    *i = (struct ls_item){.step = id.step,
                          .attempt = id.attempt,
                          .dir = arena_strdup(&l->arena, dir),
                          .committed = committed,
                          .ok = committed};
    return i;
}

static void inspect_checkpoint(struct ls *l, const struct store *s, struct store_entry id)
{
    struct load load;
    struct err e = {0};
    char name[64];
    store_entry_name(id.attempt, id.step, name);
    struct ls_item *item = add_item(l, arena_printf(&l->arena, "%s/%s", s->path, name), id, true);
    struct errors x = {l, item, 0};
    item->committed =
        !faccessat(s->fd, arena_printf(&l->arena, "%s/COMMIT", name), F_OK, 0) || errno != ENOENT;
    if (load_open(&load, s, id.attempt, id.step, &e)) {
        add_error(&x, &e);
        return;
    }
    item->bytes = manifest_bytes(&load.manifest);
    item->shards = load.manifest.nfiles;
    item->evaluated = load.manifest.evaluated;
    item->eval_loss = load.manifest.eval_loss;
    if (l->deep)
        load_verify(&load, add_error, &x, NULL);
    load_close(&load);
}

struct open_checkpoints {
    struct ls *ls;
    const struct store *store;
};

static int count_shard(void *arg, const char *name, struct err *e)
{
    struct ls_item *item = arg;
    (void)e;
    item->shards += store_begins(name, "shard-", NULL);
    return 0;
}

// A checkpoint that is being written, or was when its writer died; or one that was set aside.
static int collect_open(void *arg, const char *name, struct err *e)
{
    struct open_checkpoints *o = arg;
    struct store_entry id;
    struct store tmp;
    const char *final;
    (void)e;
    bool aside = store_begins(name, STORE_ASIDE, &final);
    if ((!aside && !store_begins(name, STORE_TMP, &final)) || !store_entry_parse(final, &id))
        return 0;
    const char *path = arena_printf(&o->ls->arena, "%s/%s", o->store->path, name);
    if (store_open(&tmp, NULL, path, NULL))
        return 0;
    struct ls_item *item = add_item(o->ls, path, id, false);
    item->aside = aside;
    durable_list(tmp.fd, count_shard, item, NULL);
    store_close(&tmp);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void add_unused(struct ls *l, const char *path)
{
    struct ls_item *item = add_item(l, path, (struct store_entry){-1, -1}, false);
    struct errors x = {l, item, 0};
    struct err e = {0};
    item->unused = true;
    err_set(&e, ERR_INVALID, "it is not used: %s", STORE_UNUSED_WHY);
    add_error(&x, &e);
}

// A folder with an OWNER is a job's, whatever the job is called.
static bool is_job(int dir, const char *name)
{
    char owner[NAME_MAX + sizeof "/OWNER"];
    struct stat st;
    snprintf(owner, sizeof owner, "%s/OWNER", name);
    return fstatat(dir, owner, &st, 0) == 0;
}

static int collect_unused(struct ls *l, const struct store *s, struct err *e)
{
    const char **names;
    int n, rc = store_list_unused(s, &l->arena, &names, &n, e);
    if (!rc && n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    for (int i = 0; i < n && !rc; i++)
        if (!is_job(s->fd, names[i]))
            add_unused(l, arena_printf(&l->arena, "%s/%s", s->path, names[i]));
    return rc;
}

static int compare_newest_first(const void *a, const void *b)
{
    const struct ls_item *x = a, *y = b;
    return store_entry_compare((struct store_entry){y->attempt, y->step},
                               (struct store_entry){x->attempt, x->step});
}

// Of a job's checkpoints, which are listed from `first` on.
static void mark_best(struct ls *l, int first)
{
    struct commit_best best = {0};
    for (int i = l->n - 1; i >= first; i--) // from the oldest on
        commit_best_offer(&best, &l->items[i], l->items[i].ok, l->items[i].evaluated,
                          l->items[i].eval_loss);
    for (int i = first; i < l->n; i++)
        l->items[i].best = &l->items[i] == best.which;
}

// A job's directory.
static int collect_store(struct ls *l, const struct store *s, struct err *e)
{
    struct store_entry *list;
    struct open_checkpoints open = {l, s};
    int n, first = l->n;
    int rc = store_scan(s, &l->arena, &list, &n, e);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++)
        inspect_checkpoint(l, s, list[i]);
    if (!l->deep)
        rc = durable_list(s->fd, collect_open, &open, e);
    if (l->n > first)
        qsort(l->items + first, (size_t)(l->n - first), sizeof *l->items, compare_newest_first);
    mark_best(l, first);
    return rc ? rc : collect_unused(l, s, e);
}

struct name_list {
    struct arena *arena;
    const char **v;
    int n, cap;
};

static int collect_name(void *arg, const char *name, struct err *e)
{
    struct name_list *x = arg;
    (void)e;
    x->v = arena_grow(x->arena, x->v, sizeof *x->v, x->n, &x->cap);
    x->v[x->n++] = arena_strdup(x->arena, name);
    return 0;
}

// A directory of jobs' directories: those that have an OWNER.
static int collect_below(struct ls *l, const struct store *s, struct err *e)
{
    struct name_list names = {.arena = &l->arena};
    int rc = durable_list(s->fd, collect_name, &names, e);
    if (names.n)
        qsort(names.v, (size_t)names.n, sizeof *names.v, compare_names);
    for (int i = 0; i < names.n && !rc; i++) {
        struct store job;
        if (!is_job(s->fd, names.v[i]) ||
            store_open(&job, NULL, arena_printf(&l->arena, "%s/%s", s->path, names.v[i]), NULL))
            continue;
        rc = collect_store(l, &job, e);
        store_close(&job);
    }
    return rc;
}

// "X/step-00000200.a3": one checkpoint of the store X.
static int collect_one(struct ls *l, const char *path, struct store_entry id, struct err *e)
{
    struct store s;
    char folder[PATH_MAX];
    path_folder(path, folder, sizeof folder);
    int rc = store_open(&s, NULL, folder, e);
    if (rc)
        return rc;
    inspect_checkpoint(l, &s, id);
    store_close(&s);
    return 0;
}

int ls_collect(struct ls *l, const char *dir, bool deep, struct err *e)
{
    struct store s;
    struct store_entry id;
    *l = (struct ls){.deep = deep};
    arena_init(&l->arena);
    char *path = arena_strdup(&l->arena, dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    int rc = store_open(&s, NULL, path, e);
    if (rc)
        return rc;
    if (store_entry_parse(path_name(path), &id)) {
        rc = collect_one(l, path, id, e);
    } else if (store_begins(path_name(path), "step-", NULL) && !is_job(s.fd, ".")) {
        add_unused(l, path);
    } else {
        rc = collect_store(l, &s, e);
        if (!rc && l->n == 0)
            rc = collect_below(l, &s, e);
    }
    store_close(&s);
    return rc;
}

void ls_clear(struct ls *l)
{
    arena_clear(&l->arena);
    *l = (struct ls){0};
}

bool ls_ok(const struct ls *l)
{
    for (int i = 0; i < l->n; i++)
        if ((l->items[i].committed || l->items[i].nerrors) && !l->items[i].ok)
            return false;
    return !l->deep || l->n > 0;
}

// ---- printing ----
// The column of losses, which is there where some checkpoint was evaluated.
static const char *print_loss(const struct ls_item *x, bool wanted, char out[40])
{
    char text[32] = "-";
    out[0] = 0;
    if (x && x->evaluated)
        snprintf(text, sizeof text, "%.4g%s", x->eval_loss, x->best ? " (best)" : "");
    if (wanted)
        snprintf(out, 40, "%-17s ", x ? text : "eval loss");
    return out;
}

void ls_print_text(const struct ls *l, struct buf *out)
{
    char loss[40];
    bool losses = false;
    for (int i = 0; i < l->n; i++)
        losses = losses || l->items[i].evaluated;
    if (!l->n)
        buf_puts(out, "no checkpoints\n");
    else
        buf_printf(out, "%10s %7s %7s %14s  %-9s %s%s\n", "step", "attempt", "shards", "bytes",
                   "state", print_loss(NULL, losses, loss), "directory");
    for (int i = 0; i < l->n; i++) {
        const struct ls_item *x = &l->items[i];
        (void)print_loss(x, losses, loss);
        if (x->unused) {
            plain_line(out, "%10s %7s %7s %14s  %-9s %s%s", "-", "-", "-", "-", "unused", loss,
                       x->dir);
            plain_line(out, "           %s", x->errors[0]);
            continue;
        }
        const char *state = x->nerrors      ? "damaged"
                            : x->aside      ? "aside"
                            : !x->committed ? "open"
                            : l->deep       ? "verified"
                                            : "ok";
        plain_line(out, "%10" PRId64 " %7" PRId64 " %7d %14" PRIu64 "  %-9s %s%s", x->step,
                   x->attempt, x->shards, x->bytes, state, loss, x->dir);
        for (int k = 0; k < x->nerrors; k++)
            plain_line(out, "           %s", x->errors[k]);
    }
}

void ls_print_json(const struct ls *l, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    json_object(&w, NULL);
    json_array(&w, "checkpoints");
    for (int i = 0; i < l->n; i++) {
        const struct ls_item *x = &l->items[i];
        json_object(&w, NULL);
        json_known_int(&w, "step", x->step >= 0, x->step);
        json_known_int(&w, "attempt", x->attempt >= 0, x->attempt);
        json_str(&w, "dir", x->dir);
        json_uint(&w, "bytes", x->bytes);
        json_int(&w, "shards", x->shards);
        json_bool(&w, "committed", x->committed);
        json_bool(&w, "unused", x->unused);
        json_bool(&w, "aside", x->aside);
        json_known_double(&w, "eval_loss", x->evaluated, x->eval_loss);
        json_bool(&w, "best", x->best);
        json_bool(&w, "ok", x->ok);
        json_array(&w, "errors");
        for (int k = 0; k < x->nerrors; k++)
            json_str(&w, NULL, x->errors[k]);
        json_end(&w);
        json_end(&w);
    }
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(out, '\n');
}
