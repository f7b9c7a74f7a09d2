// SPDX-License-Identifier: Apache-2.0
// See sinks.h.
#include "worker/sinks/sinks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/job/job_json.h"
#include "worker/sinks/sink.h"

enum {
    LOOK_MS = 500,
    LOOK_LAST_MS = 20
};                     // between two looks at the file; of an attempt that is over
enum { FOLDER_S = 2 }; // beyond that time, for a folder that does not answer
enum { LAUNCHER_PATH = 4200 };

struct known_sink {
    char *name;
    char *words; // of its command, split in place
    char *argv[SINK_WORDS + 4];
};
struct sinks {
    char launcher[LAUNCHER_PATH], parent[16];
    struct known_sink known[SINKS_MAX];
    int n;
    int64_t rest_ns;
    struct list feeds;
};

// The sinks of one attempt.
struct feed {
    struct list link;
    int slot; // −1: rank 0 has ended
    pthread_t thread;
    int wake;                 // an eventfd
    atomic_bool ending, over; // rank 0 has ended; the thread has nothing left to do
    struct arena arena;
    const char *path;
    uint64_t attempt;
    int64_t resumed_at, rest_ns;
    struct tail_attempts attempts;
    struct sink sinks[SINKS_MAX];
    atomic_bool done[SINKS_MAX];
    int n;
};

// ---- the thread ----

static bool turn_all(struct feed *f, bool ending)
{
    bool all = true;
    for (int i = 0; i < f->n; i++) {
        f->done[i] = f->done[i] || sink_turn(&f->sinks[i], clock_mono_ns(), ending);
        all = all && f->done[i];
    }
    return all;
}

static void wait_for_more(struct feed *f, bool ending)
{
    struct pollfd p[3 * SINKS_MAX + 1];
    int n = 0;
    for (int i = 0; i < f->n; i++)
        n += f->done[i] ? 0 : sink_polls(&f->sinks[i], p + n);
    if (!ending)
        p[n++] = (struct pollfd){.fd = f->wake, .events = POLLIN};
    (void)poll(p, (nfds_t)n, ending ? LOOK_LAST_MS : LOOK_MS);
}

static void *feed_sinks(void *ctx)
{
    struct feed *f = ctx;
    int64_t until = 0;
    tail_look(f->path, f->attempt, f->resumed_at, &f->attempts);
    for (int i = 0; i < f->n; i++)
        sink_begin(&f->sinks[i], clock_mono_ns());
    for (;;) {
        bool ending = atomic_load(&f->ending);
        if (ending && !until)
            until = clock_mono_ns() + f->rest_ns;
        if (turn_all(f, ending) || (until && clock_mono_ns() >= until))
            break;
        wait_for_more(f, ending);
    }
    for (int i = 0; i < f->n; i++)
        sink_end(&f->sinks[i]);
    tail_attempts_clear(&f->attempts);
    atomic_store(&f->over, true);
    return NULL;
}

// ---- an attempt ----

static const char *make_header(struct feed *f, const Weft__Rank__Assign *a, const char *store,
                               const char *resolved, const struct json *job)
{
    struct buf text = {0};
    struct json_out w;
    const struct json *train = json_get(job, "train");
    int64_t steps = 0;
    const char *name = "";
    (void)json_get_str(job, "name", &name, NULL);
    if (train && train->type == JSON_OBJECT)
        (void)json_get_int(train, "steps", &steps, NULL);
    json_out_init(&w, &text);
    json_object(&w, NULL);
    json_int(&w, "weft", 1);
    json_str(&w, "job", a->job_id);
    json_str(&w, "name", name);
    json_uint(&w, "attempt", a->attempt);
    json_int(&w, "resumed_at", a->restore_step);
    json_int(&w, "steps", steps);
    json_str(&w, "store", store);
    json_raw(&w, "resolved", resolved);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(&text, '\n');
    return buf_keep(&text, &f->arena);
}

static struct known_sink *find_known(struct sinks *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->known[i].name, name))
            return &s->known[i];
    return NULL;
}

static void add_sink(struct sinks *s, struct feed *f, const char *name, const char *store,
                     const char *header, struct buf *missing)
{
    struct known_sink *known = find_known(s, name);
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->sinks[i].name, name))
            return;
    if (!known) {
        buf_printf(missing, "%s%s", missing->len ? ", " : "", name);
        return;
    }
    f->sinks[f->n++] = (struct sink){
        .name = known->name,
        .job = f->sinks[0].job,
        .folder = arena_printf(&f->arena, "%s/sinks", store),
        .header = header,
        .launcher = s->launcher,
        .argv = known->argv,
        .rewinds = known == &s->known[0],
        .tail = {.path = f->path, .attempts = &f->attempts, .own = f->attempt, .fd = -1}};
}

// Reads the job's text, and prepares what its thread needs. False: the job names no sink of ours.
static bool prepare_feed(struct sinks *s, struct feed *f, const Weft__Rank__Assign *a,
                         struct buf *missing)
{
    struct buf resolved = {0};
    struct json *job;
    struct err e = {0};
    int rc = job_text_json(a->job_text, &resolved, &e);
    rc = rc ? rc : json_parse(&f->arena, buf_str(&resolved), resolved.len, &job, &e);
    if (rc) {
        log_warn("sink", "job=%s no sink gets its rows: %s", a->job_id, e.text);
        buf_clear(&resolved);
        return false;
    }
    f->path = arena_strdup(&f->arena, a->metrics);
    f->attempt = a->attempt;
    f->resumed_at = a->restore_step;
    char *store = arena_strdup(&f->arena, a->metrics), *slash = strrchr(store, '/');
    *(slash ? slash : store) = 0;
    const char *header = make_header(f, a, store, buf_str(&resolved), job);
    const char *id = arena_strdup(&f->arena, a->job_id);
    const struct json *metrics = json_get(job, "metrics");
    const struct json *names =
        metrics && metrics->type == JSON_OBJECT ? json_get(metrics, "sinks") : NULL;
    for (const struct json *c = names && names->type == JSON_ARRAY ? names->first : NULL; c;
         c = c->next)
        if (c->type == JSON_STRING)
            add_sink(s, f, c->string, store, header, missing);
    for (int i = 0; i < f->n; i++)
        f->sinks[i].job = id;
    buf_clear(&resolved);
    return f->n > 0;
}

static void feed_free(struct feed *f)
{
    list_remove(&f->link);
    arena_clear(&f->arena);
    close(f->wake);
    free(f);
}

static void free_those_over(struct sinks *s)
{
    list_for_each (at, &s->feeds) {
        struct feed *f = list_entry(at, struct feed, link);
        if (!atomic_load(&f->over))
            continue;
        (void)pthread_join(f->thread, NULL);
        feed_free(f);
    }
}

void sinks_begin(struct sinks *s, int slot, const Weft__Rank__Assign *a, struct buf *missing)
{
    if (!s || !*a->metrics || a->only)
        return;
    free_those_over(s);
    struct feed *f = heap_alloc(sizeof *f);
    list_append(&s->feeds, &f->link);
    f->slot = slot;
    f->rest_ns = s->rest_ns;
    f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!prepare_feed(s, f, a, missing)) {
        feed_free(f);
        return;
    }
    int failed = f->wake < 0 ? errno : pthread_create(&f->thread, NULL, feed_sinks, f);
    if (!failed)
        return;
    log_warn("sink", "job=%s no sink gets its rows: %s", a->job_id, strerror(failed));
    feed_free(f);
}

void sinks_end(struct sinks *s, int slot)
{
    if (!s)
        return;
    list_for_each (at, &s->feeds) {
        struct feed *f = list_entry(at, struct feed, link);
        if (f->slot != slot)
            continue;
        f->slot = -1;
        atomic_store(&f->ending, true);
        (void)eventfd_write(f->wake, 1);
    }
}

// ---- life ----

static int add_known(struct sinks *s, const char *name, size_t len, const char *command,
                     struct err *e)
{
    struct known_sink *k = &s->known[s->n];
    char *save = NULL, text[64];
    int n = 0;
    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), name);
    if (len >= sizeof text || !folder_name_ok(text))
        return err_set(e, ERR_INVALID, "--sink: '%s' is no name: 1 to 63 of a-z 0-9 . _ -", text);
    if (find_known(s, text))
        return err_set(e, ERR_INVALID, "--sink: there is a sink '%s' already", text);
    if (s->n == SINKS_MAX)
        return err_set(e, ERR_LIMIT, "--sink: a worker has at most %d", SINKS_MAX);
    k->name = heap_strdup(text);
    k->words = heap_strdup(command);
    s->n++;
    k->argv[n++] = s->launcher;
    k->argv[n++] = heap_strdup("--parent");
    k->argv[n++] = s->parent;
    for (char *w = strtok_r(k->words, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) {
        if (n == SINK_WORDS + 3)
            return err_set(e, ERR_LIMIT, "--sink: the command of '%s' has more than %d words", text,
                           SINK_WORDS);
        k->argv[n++] = w;
    }
    return n > 3 ? 0 : err_set(e, ERR_INVALID, "--sink: '%s' has no command", text);
}

static int add_given(struct sinks *s, const char *given, struct err *e)
{
    const char *equals = strchr(given, '=');
    if (!equals)
        return err_set(e, ERR_INVALID, "--sink: '%s' is not NAME=COMMAND", given);
    return add_known(s, given, (size_t)(equals - given), equals + 1, e);
}

int sinks_open(const char *const *given, int n, int64_t rest_ns, struct sinks **out, struct err *e)
{
    struct err why = {0};
    struct buf own = {0};
    struct sinks *s = heap_alloc(sizeof *s);
    *out = NULL;
    list_init(&s->feeds);
    s->rest_ns = rest_ns;
    snprintf(s->parent, sizeof s->parent, "%d", (int)getpid());
    if (system_find_program("weft-sink", s->launcher, sizeof s->launcher, &why)) {
        free(s);
        if (n)
            return err_set(e, ERR_NOTFOUND, "--sink: %s", why.text);
        log_warn("sink", "this worker has no sinks: %s", why.text);
        return 0;
    }
    buf_printf(&own, "%s tensorboard", s->launcher);
    int rc = add_known(s, "tensorboard", strlen("tensorboard"), buf_str(&own), e);
    for (int i = 0; !rc && i < n; i++)
        rc = add_given(s, given[i], e);
    buf_clear(&own);
    if (rc)
        sinks_close(s, NULL);
    else
        *out = s;
    return rc;
}

static void report_wait(const struct sinks *s, void (*waits)(const char *names))
{
    enum { PATIENCE_MS = 1000, TURN_MS = 20 };
    struct buf names = {0};
    for (int ms = 0; ms <= PATIENCE_MS; ms += TURN_MS) {
        buf_reset(&names);
        list_for_each (at, &s->feeds) {
            struct feed *f = list_entry(at, struct feed, link);
            for (int i = 0; i < f->n && !atomic_load(&f->over); i++)
                if (!atomic_load(&f->done[i]))
                    buf_printf(&names, "%s%s", names.len ? ", " : "", f->sinks[i].name);
        }
        if (!names.len)
            return;
        clock_sleep_ms(TURN_MS);
    }
    waits(buf_str(&names));
    buf_clear(&names);
}

// A thread that hangs in a file system is left to itself; its sinks die with this process.
void sinks_close(struct sinks *s, void (*waits)(const char *names))
{
    struct timespec until;
    bool left = false;
    if (!s)
        return;
    list_for_each (at, &s->feeds) {
        struct feed *f = list_entry(at, struct feed, link);
        atomic_store(&f->ending, true);
        (void)eventfd_write(f->wake, 1);
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (waits)
        report_wait(s, waits);
    until.tv_sec += s->rest_ns / CLOCK_S + FOLDER_S;
    list_for_each (at, &s->feeds) {
        struct feed *f = list_entry(at, struct feed, link);
        if (pthread_clockjoin_np(f->thread, NULL, CLOCK_MONOTONIC, &until)) {
            log_warn("sink", "job=%s its sinks are left: their folder does not answer",
                     f->sinks[0].job);
            left = true;
        } else {
            feed_free(f);
        }
    }
    for (int i = 0; !left && i < s->n; i++) {
        free(s->known[i].name);
        free(s->known[i].words);
        free(s->known[i].argv[1]);
    }
    if (!left)
        free(s);
}
