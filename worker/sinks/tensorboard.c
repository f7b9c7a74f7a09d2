// SPDX-License-Identifier: Apache-2.0
// Rows of metrics as TensorBoard's events. See tensorboard.h.
//
//   loss, a number              train/loss     scalar; eval_loss is eval/loss, step_ms speed/step_ms,
//                                              memory_bytes memory/bytes
//   kl, a list of numbers       train/kl       histogram, and scalars train/kl/0 … where they are few
//   detail.groups.G.norm        detail/norm    histogram over groups, and scalars detail/norm/G
//   samples                     samples/0 …    text, behind the prompt
//   what the header resolves    hparams
//
// Each life of this process begins with a session start at its first row's step: from the second on
// readers drop what an earlier life had there, be it rows of an attempt that was resumed before them or
// rows that are given twice because this process died.
#include "worker/sinks/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "worker/sinks/event_file.h"

#define SYNC_NS (10 * CLOCK_S) // between two syncs while rows come
enum {
    ROW_LINE_MAX = 16 << 20,
    PIECE = 64 << 10,
    FEW = 64,          // of a list's numbers that get scalars of their own
    LEAVES_MAX = 500,  // of a job
    SETTING_MAX = 300, // bytes of one; the model's text is longer
    TAG_MAX = 400,
};

struct board {
    struct event_file file;
    bool open, started;
    int64_t rows, reported,
        left_out;    // rows taken, of those how many were said to be durable; lines that are none
    int64_t sync_ns; // when what was taken is to be durable; 0: all is
};

// ---- one row ----

// "eval_loss" is eval/loss. Keys of a time, a rate or memory stand together; the rest is training's.
static void make_tag(const char *key, char out[TAG_MAX])
{
    size_t len = strlen(key);
    bool speed =
        (len > 3 && !strcmp(key + len - 3, "_ms")) || strstr(key, "_per_s") || !strcmp(key, "mfu");
    if (!strncmp(key, "eval_", 5))
        snprintf(out, TAG_MAX, "eval/%s", key + 5);
    else if (!strncmp(key, "memory_", 7))
        snprintf(out, TAG_MAX, "memory/%s", key + 7);
    else
        snprintf(out, TAG_MAX, "%s/%s", speed ? "speed" : "train", key);
}

static bool has_no_curve(const char *key)
{
    static const char *const keys[] = {"step",    "attempt",   "t_ms",  "prompt",
                                       "samples", "nonfinite", "detail"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

// A number that was not finite is null, and listed.
static bool is_listed(const struct json *row, const char *key)
{
    const struct json *list = json_get(row, "nonfinite");
    for (const struct json *c = list && list->type == JSON_ARRAY ? list->first : NULL; c;
         c = c->next)
        if (c->type == JSON_STRING && !strcmp(c->string, key))
            return true;
    return false;
}

static void put_list(struct board *b, const char *tag, const struct json *list)
{
    double *values = heap_alloc(sizeof *values * (size_t)(list->count + 1));
    char one[TAG_MAX + 24];
    int n = 0, at = 0;
    for (const struct json *c = list->first; c; c = c->next, at++) {
        if (c->type != JSON_NUMBER)
            continue;
        values[n++] = c->number;
        snprintf(one, sizeof one, "%s/%d", tag, at);
        if (list->count <= FEW)
            event_scalar(&b->file, one, c->number);
    }
    event_histogram(&b->file, tag, values, n);
    free(values);
}

static void put_samples(struct board *b, const struct json *row, const struct json *samples)
{
    const struct json *prompt = json_get(row, "prompt");
    char tag[40];
    int at = 0;
    for (const struct json *c = samples->first; c; c = c->next, at++) {
        struct buf text = {0};
        if (prompt && prompt->type == JSON_STRING)
            buf_puts(&text, prompt->string);
        if (c->type == JSON_STRING)
            buf_puts(&text, c->string);
        snprintf(tag, sizeof tag, "samples/%d", at);
        event_text(&b->file, tag, buf_str(&text));
        buf_clear(&text);
    }
}

// The numbers of one name ("weight_norm") over all groups.
static void put_detail(struct board *b, const struct json *groups, const char *name)
{
    double *values = heap_alloc(sizeof *values * (size_t)(groups->count + 1));
    char tag[TAG_MAX], one[2 * TAG_MAX];
    int n = 0;
    snprintf(tag, sizeof tag, "detail/%s", name);
    for (const struct json *g = groups->first; g; g = g->next) {
        const struct json *value = g->type == JSON_OBJECT ? json_get(g, name) : NULL;
        if (!value || value->type != JSON_NUMBER)
            continue;
        values[n++] = value->number;
        snprintf(one, sizeof one, "%s/%s", tag, g->key);
        event_scalar(&b->file, one, value->number);
    }
    event_histogram(&b->file, tag, values, n);
    free(values);
}

static void put_row(struct board *b, const struct json *row)
{
    const struct json *samples = json_get(row, "samples"), *detail = json_get(row, "detail");
    const struct json *groups =
        detail && detail->type == JSON_OBJECT ? json_get(detail, "groups") : NULL;
    char tag[TAG_MAX];
    for (const struct json *c = row->first; c; c = c->next) {
        if (has_no_curve(c->key))
            continue;
        make_tag(c->key, tag);
        if (c->type == JSON_NUMBER)
            event_scalar(&b->file, tag, c->number);
        else if (c->type == JSON_NULL && is_listed(row, c->key))
            event_scalar(&b->file, tag, NAN);
        else if (c->type == JSON_ARRAY)
            put_list(b, tag, c);
    }
    if (samples && samples->type == JSON_ARRAY)
        put_samples(b, row, samples);
    if (groups && groups->type == JSON_OBJECT && groups->first &&
        groups->first->type == JSON_OBJECT)
        for (const struct json *c = groups->first->first; c; c = c->next)
            put_detail(b, groups, c->key); // all groups have the same numbers
}

static void take_row(struct board *b, const struct json *row)
{
    const struct json *t = json_get(row, "t_ms");
    int64_t step, ms = t && t->is_int ? t->integer : clock_wall_ms();
    b->rows++;
    if (row->type != JSON_OBJECT || json_get_int(row, "step", &step, NULL) || step < 0) {
        b->left_out++;
        return;
    }
    if (!b->started) {
        event_begin(&b->file, (double)ms / 1e3, step);
        event_session_start(&b->file);
        event_end(&b->file);
    }
    b->started = true;
    event_begin(&b->file, (double)ms / 1e3, step);
    put_row(b, row);
    event_end(&b->file);
}

// ---- the header ----

struct settings {
    struct arena *arena;
    struct event_setting v[LEAVES_MAX];
    int n;
};

// The leaves of the job by their paths, "optimizer.lr". A list is one, as its text.
static void flatten_job(struct settings *s, const struct json *node, const char *path)
{
    struct event_setting *to = &s->v[s->n];
    *to = (struct event_setting){.name = path};
    if (s->n == LEAVES_MAX - 1)
        return;
    if (node->type == JSON_OBJECT) {
        for (const struct json *c = node->first; c; c = c->next)
            flatten_job(s, c, *path ? arena_printf(s->arena, "%s.%s", path, c->key) : c->key);
        return;
    }
    if (node->type == JSON_NUMBER) {
        to->number = node->number;
    } else if (node->type == JSON_BOOL) {
        to->is_bool = true;
        to->number = node->boolean;
    } else if (node->type == JSON_STRING && node->length <= SETTING_MAX) {
        to->text = node->string;
    } else if (node->type == JSON_ARRAY) {
        struct buf text = {0};
        for (const struct json *c = node->first; c && text.len < SETTING_MAX; c = c->next)
            if (c->type == JSON_STRING)
                buf_printf(&text, "%s%s", text.len ? ", " : "", c->string);
            else if (c->type == JSON_NUMBER)
                buf_printf(&text, "%s%g", text.len ? ", " : "", c->number);
        to->text = buf_keep(&text, s->arena);
    } else {
        return;
    }
    s->n++;
}

static int take_header(struct board *b, struct arena *a, const struct json *header, struct err *e)
{
    const char *store;
    const struct json *resolved;
    int rc = json_get_str(header, "store", &store, e);
    if (rc)
        return err_wrap(e, "the header");
    const char *dir = arena_printf(a, "%s/tensorboard", store);
    if (mkdir(dir, 0755) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", dir);
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return err_errno(e, ERR_IO, "cannot open %s, a folder and no link", dir);
    rc = event_file_open(folder, "events.out.tfevents.weft", &b->file, e);
    close(folder);
    if (rc)
        return err_wrap(e, "%s", dir);
    b->open = true;
    if (b->file.continues || json_get_object(header, "resolved", &resolved, NULL))
        return rc;
    struct settings *s = arena_new(a, struct settings);
    s->arena = a;
    flatten_job(s, resolved, "");
    double now = (double)clock_wall_ms() / 1e3;
    event_begin(&b->file, now, 0);
    event_settings(&b->file, s->v, s->n, now);
    event_end(&b->file);
    return 0;
}

// ---- the loop ----

static int take_line(struct board *b, const char *line, size_t len, struct err *e)
{
    struct arena a = {0};
    struct json *json;
    struct err why = {0};
    int rc = 0;
    bool whole = !json_parse(&a, line, len, &json, &why);
    if (!b->open)
        rc = whole && json->type == JSON_OBJECT
                 ? take_header(b, &a, json, e)
                 : err_set(e, ERR_DATA, "the first line is no header: %s", why.text);
    else if (whole) {
        take_row(b, json);
    } else {
        b->rows++;
        b->left_out++;
    }
    arena_clear(&a);
    return rc;
}

// Takes the whole lines out of what was read. One that is too long is an error: nothing of ours is.
static int take_lines(struct board *b, struct buf *in, struct err *e)
{
    size_t at = 0;
    int rc = 0;
    char *end;
    while (!rc && (end = memchr(in->data + at, '\n', in->len - at))) {
        rc = take_line(b, in->data + at, (size_t)(end - in->data) - at, e);
        at = (size_t)(end - in->data) + 1;
    }
    memmove(in->data, in->data + at, in->len - at);
    in->len -= at;
    if (!rc && in->len > ROW_LINE_MAX)
        rc = err_set(e, ERR_LIMIT, "a line is longer than %d bytes", ROW_LINE_MAX);
    return rc;
}

// What was taken becomes durable, and is reported so.
static int settle_rows(struct board *b, int out, struct err *e)
{
    char text[32];
    int rc = event_file_write(&b->file, e);
    rc = rc ? rc : event_file_sync(&b->file, e);
    if (rc)
        return rc;
    b->sync_ns = 0;
    b->reported = b->rows;
    int n = snprintf(text, sizeof text, "%lld\n", (long long)b->rows);
    return write(out, text, (size_t)n) == n ? 0
                                            : err_errno(e, ERR_IO, "nobody hears what is durable");
}

static int read_rows(struct board *b, int in, int out, struct buf *text, struct err *e)
{
    for (;;) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        int64_t now = clock_mono_ns();
        if (b->sync_ns && now >= b->sync_ns) {
            int rc = settle_rows(b, out, e);
            if (rc)
                return rc;
        }
        if (poll(&p, 1, b->sync_ns ? deadline_wait_ms(b->sync_ns, now) : -1) <= 0)
            continue;
        buf_reserve(text, PIECE);
        ssize_t n = read(in, text->data + text->len, PIECE - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        text->len += (size_t)n;
        int rc = take_lines(b, text, e);
        if (!rc && b->open)
            rc = event_file_write(&b->file, e);
        if (rc)
            return rc;
        if (b->rows > b->reported && !b->sync_ns)
            b->sync_ns = clock_mono_ns() + SYNC_NS;
    }
}

int tensorboard_run(int in, int out, struct err *e)
{
    struct board b = {.file.fd = -1};
    struct buf text = {0};
    int rc = write(out, "0\n", 2) == 2 ? 0 : err_errno(e, ERR_IO, "nobody hears what is durable");
    rc = rc ? rc : read_rows(&b, in, out, &text, e);
    if (!rc && b.open)
        rc = settle_rows(&b, out, e);
    if (b.left_out)
        log_warn("tensorboard", "%lld lines were no rows and were left out", (long long)b.left_out);
    event_file_close(&b.file);
    buf_clear(&text);
    return rc;
}
