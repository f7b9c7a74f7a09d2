// SPDX-License-Identifier: Apache-2.0
// Durable acts; see storage.h.
//
//   NAME-<id8>/.probe-<attempt>/<host id>     WRITE: this host's nonce, durable
//   NAME-<id8>/.probed-<attempt>/             RENAME: the same, renamed by one host
//   READ: every host finds every nonce there. FENCE removes it, and TIDY, where no FENCE follows.
#include "worker/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/message.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/root.h"
#include "common/base/system.h"
#include "common/ckpt/commit.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/load.h"
#include "common/ckpt/source.h"
#include "common/ckpt/store.h"
#include "common/data/pattern.h"
#include "common/metrics/rows.h"
#include "worker/finder.h"

#define READ_NS (3 * CLOCK_S) // a network file system may show a name late
// Threads for what running jobs wait for, for looks at data, for reads of rows: where one kind hangs in its
// file system it takes no room from the others.
enum act_kind { ACT_OF_JOB, ACT_LOOK, ACT_ROWS, ACT_KINDS };
static const int threads_of[ACT_KINDS] = {[ACT_OF_JOB] = 64, [ACT_LOOK] = 16, [ACT_ROWS] = 16};
enum { CLOSE_S = 2, RETRY_MS = 50 };
enum { NONCE_MAX = 256, PROBE_NAME_MAX = 120 };
#define PROBE  ".probe-"
#define PROBED ".probed-"

struct storage {
    char *root, *data_root, *host, *name;
    int event, running, of_kind[ACT_KINDS]; // acts that run
    pthread_mutex_t mutex;
    pthread_cond_t idle; // running is 0
    struct list done;    // answer
};

struct storage_answer {
    struct list link;
    Weft__V1__StorageDone *message;
};

struct act { // a thread's
    struct storage *s;
    Weft__V1__Storage *ask;
    char *cluster;
    struct arena arena;
    Weft__V1__StorageDone answer; // its memory is the arena's
};

// ---- names ----

static bool is_plain_id(const char *s) // an id: it becomes part of a name
{
    size_t n = strspn(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-");
    return n > 0 && n < 65 && !s[n];
}

static void probe_name(const char *prefix, const Weft__V1__Storage *ask, char out[PROBE_NAME_MAX])
{
    snprintf(out, PROBE_NAME_MAX, "%s%s", prefix, ask->attempt_id);
}

// Finds where the file system of a path is mounted.
static void mount_point(const char *path, char *out, size_t size)
{
    char at[PATH_MAX], above[PATH_MAX + 4];
    struct stat here, there;
    snprintf(out, size, "%s", path);
    if (!realpath(path, at) || stat(at, &here))
        return;
    while (strcmp(at, "/")) {
        snprintf(above, sizeof above, "%s/..", at);
        if (stat(above, &there) || there.st_dev != here.st_dev || !realpath(above, at))
            break;
    }
    snprintf(out, size, "%s", at);
}

// ---- the folder ----

// A path of the job's as this host opens it: relative ones start at the root, or where there is none
// at the folder that the job came from.
static int place_path(const struct act *t, const char *key, const char *path, char out[PATH_MAX],
                      struct err *e)
{
    bool below = !t->s->root && path[0] != '/';
    if (below && !*t->ask->base_dir)
        return err_set(e, ERR_INVALID,
                       "%s '%s' is relative and this worker was started without --checkpoint-root",
                       key, path);
    if (snprintf(out, PATH_MAX, "%s%s%s", below ? t->ask->base_dir : "", below ? "/" : "", path) >=
        PATH_MAX)
        return err_set(e, ERR_INVALID, "the path of %s is too long", key);
    return 0;
}

// TIDY, DELETE and ROWS make no folder. A job that never ran has no attempt.
static int open_store(struct act *t, struct store *s, struct err *e)
{
    bool deletes = t->ask->op == WEFT__V1__STORAGE_OP__STORAGE_DELETE;
    bool reads = t->ask->op == WEFT__V1__STORAGE_OP__STORAGE_ROWS;
    bool tidies = deletes || reads || t->ask->op == WEFT__V1__STORAGE_OP__STORAGE_TIDY;
    const Weft__V1__Storage *ask = t->ask;
    const char *root = t->s->root;
    char dir[PATH_MAX];
    struct store_owner owner = {t->cluster, reads ? ask->rows_of : ask->job, ask->name,
                                ask->resolved, ask->threads};
    *s = (struct store){.fd = -1};
    if (!*ask->dir || (!deletes && !reads && !is_plain_id(ask->attempt_id)))
        return err_set(e, ERR_INVALID,
                       "the coordinator asked for work on a checkpoint folder without naming the "
                       "folder or the attempt");
    int rc = place_path(t, "checkpoint.dir", ask->dir, dir, e);
    rc = rc ? rc : (tidies ? store_find : store_make)(s, root, dir, &owner, e);
    if (tidies && rc == ERR_NOTFOUND)
        return 0; // there is nothing to tidy
    if (!rc)
        t->answer.store = arena_strdup(&t->arena, s->path);
    return rc;
}

// ---- the probe ----

static int sync_at(int dir, const char *name, struct err *e)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? err_errno(e, ERR_IO, "cannot sync %s", name) : 0;
    system_close(&fd);
    return rc;
}

static int write_nonce(struct act *t, struct store *s, struct err *e)
{
    char dir[PROBE_NAME_MAX], path[PROBE_NAME_MAX + 80];
    size_t len = strlen(t->ask->nonce);
    probe_name(PROBE, t->ask, dir);
    snprintf(path, sizeof path, "%s/%s", dir, t->s->host);
    if (mkdirat(s->fd, dir, 0700) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", dir);
    int rc = 0, fd = openat(s->fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot make %s", path);
    if (write(fd, t->ask->nonce, len) != (ssize_t)len || fsync(fd))
        rc = err_errno(e, ERR_IO, "cannot write %s", path);
    if (close(fd) && !rc)
        rc = err_errno(e, ERR_IO, "cannot close %s", path);
    if (!rc)
        rc = sync_at(s->fd, dir, e);
    return rc ? rc : sync_at(s->fd, ".", e);
}

static int rename_probe(struct act *t, struct store *s, struct err *e)
{
    char from[PROBE_NAME_MAX], to[PROBE_NAME_MAX];
    probe_name(PROBE, t->ask, from);
    probe_name(PROBED, t->ask, to);
    bool done = !faccessat(s->fd, to, F_OK, 0); // asked again
    if (!done && renameat(s->fd, from, s->fd, to))
        return err_errno(e, ERR_IO, "cannot rename the directory %s", from);
    return sync_at(s->fd, ".", e);
}

static int check_nonce(struct store *s, const char *dir, const char *pair, struct err *e)
{
    char path[PROBE_NAME_MAX + 80], host[66];
    const char *nonce = strchr(pair, '=');
    struct buf b = {0};
    if (!nonce || nonce - pair > 64)
        return err_set(e, ERR_INVALID, "the probe of the checkpoint folder names no host");
    snprintf(host, sizeof host, "%.*s", (int)(nonce - pair), pair);
    if (!is_plain_id(host))
        return err_set(e, ERR_INVALID, "the probe of the checkpoint folder names no host");
    snprintf(path, sizeof path, "%s/%s", dir, host);
    int rc = folder_read_whole(s->fd, path, true, NONCE_MAX, &b, e);
    if (rc)
        err_wrap(e, "the test file that host %s wrote cannot be read here", host);
    else if (strcmp(buf_str(&b), nonce + 1))
        rc = err_set(e, ERR_DATA, "the test file of host %s holds something else than it wrote",
                     host);
    buf_clear(&b);
    return rc;
}

static int read_nonces(struct act *t, struct store *s, struct err *e)
{
    char dir[PROBE_NAME_MAX];
    int64_t until = clock_mono_ns() + READ_NS;
    probe_name(PROBED, t->ask, dir);
    for (size_t i = 0; i < t->ask->n_nonces; i++) {
        int rc;
        while ((rc = check_nonce(s, dir, t->ask->nonces[i], e))) {
            if (rc == ERR_INVALID || clock_mono_ns() > until)
                return rc;
            clock_sleep_ms(RETRY_MS);
        }
    }
    return 0;
}

// ---- the fence ----

struct damaged {
    struct act *t;
    struct {
        struct store_entry id;
        const char *why;
    } v[DAMAGED_MAX];
    int n;
    struct err io; // the system refused: that says nothing about the checkpoint
};

static void note_damaged(void *arg, struct store_entry which, const struct err *e)
{
    struct damaged *d = arg;
    if (e->code == ERR_IO || e->code == ERR_NOMEM)
        d->io = *e;
    if (d->n == DAMAGED_MAX)
        return;
    d->v[d->n].id = which;
    d->v[d->n++].why = arena_strdup(&d->t->arena, e->text);
}

static void add_loss(const struct store *s, struct store_entry id, Weft__V1__Checkpoint *c)
{
    struct load l;
    if (load_open(&l, s, id.attempt, id.step, NULL))
        return;
    c->evaluated = l.manifest.evaluated;
    c->eval_loss = l.manifest.eval_loss;
    load_close(&l);
}

static Weft__V1__Checkpoint *make_row(struct act *t, const struct store *s, struct store_entry id,
                                      const struct damaged *d)
{
    Weft__V1__Checkpoint *c = arena_new(&t->arena, Weft__V1__Checkpoint);
    weft__v1__checkpoint__init(c);
    c->job = frame_text(t->ask->job);
    c->attempt = (uint64_t)id.attempt;
    c->step = id.step;
    c->state = COMMIT_COMMITTED;
    if (t->ask->losses)
        add_loss(s, id, c);
    for (int i = 0; i < d->n; i++) {
        if (store_entry_compare(d->v[i].id, id))
            continue;
        c->bad = true;
        c->why = frame_text(d->v[i].why);
    }
    return c;
}

// Lists what is committed, newest first, and which of the newest are damaged.
static int list_committed(struct act *t, struct store *s, struct err *e)
{
    struct damaged d = {.t = t};
    struct err ignored = {0};
    struct store_entry *ids;
    struct load l;
    int n, rc = store_scan(s, &t->arena, &ids, &n, e);
    if (rc)
        return rc;
    if (!load_open_newest_good(&l, s, note_damaged, &d, &ignored))
        load_close(&l);
    if (d.io.code) {
        *e = d.io;
        return err_wrap(e, "cannot read the checkpoints");
    }
    t->answer.committed = arena_array(&t->arena, Weft__V1__Checkpoint *, n + 1);
    for (int i = 0; i < n; i++)
        t->answer.committed[t->answer.n_committed++] = make_row(t, s, ids[i], &d);
    return 0;
}

// Finds where a job without checkpoints of its own begins, once: what an attempt before has pinned is
// opened again.
static int pin_source(struct act *t, const struct store *s, struct err *e)
{
    const Weft__V1__Storage *ask = t->ask;
    struct manifest_source pin = {0};
    struct load l = {.dirfd = -1};
    char path[PATH_MAX], name[64];
    int rc = source_read(s, &t->arena, &pin, e);
    bool pinned = !rc;
    if (!pinned && t->answer.n_committed)
        return rc; // a job that has begun without one, or whose folder was made again: nothing is read
    if (pinned)
        rc = source_open_pinned(&l, t->s->root, &pin, e);
    else if (rc == ERR_NOTFOUND && !source_is_path(ask->source))
        rc =
            err_set(e, ERR_INVALID,
                    "job '%s' is not there, or no longer; a path begins with ./ or /", ask->source);
    else if (rc == ERR_NOTFOUND) {
        rc = place_path(t, "checkpoint.from", source_path(ask->source), path, e);
        if (!rc)
            rc = source_open(&l, t->s->root, path, ask->source_step, &t->arena, &pin, e);
    }
    load_close(&l);
    if (!rc && !pinned)
        rc = source_pin(s, &t->arena, &pin, e);
    if (rc == ERR_NOTFOUND || rc == ERR_DATA || rc == ERR_CORRUPT)
        rc = e->code = ERR_INVALID; // no other try helps
    if (rc)
        return err_wrap(e, "checkpoint.from");
    store_entry_name(pin.attempt, pin.step, name);
    t->answer.source = arena_printf(&t->arena, "%s/%s", pin.folder, name);
    t->answer.source_step = pin.step;
    return 0;
}

static int fence_store(struct act *t, struct store *s, struct err *e)
{
    int64_t greatest = 0;
    int64_t attempt = t->ask->attempt > ATTEMPT_MAX ? ATTEMPT_MAX + 1 : (int64_t)t->ask->attempt;
    int rc = store_fence(s, attempt, t->ask->attempt_id, &greatest, e);
    if (rc == ERR_FENCED)
        t->answer.greatest = (uint64_t)greatest;
    if (rc)
        return rc;
    // A coordinator of before says no more than the step.
    bool goes_back = t->ask->goes_back || t->ask->from_step > 0;
    rc = goes_back ? load_make_newest(s, attempt, t->ask->from_step, e) : 0;
    rc = rc ? rc : list_committed(t, s, e);
    if (rc)
        return rc;
    const char **names;
    int n;
    // The coordinator may have decided none of those that are listed, and begin with the source.
    struct err ignored = {0};
    if (*t->ask->source)
        rc = pin_source(t, s, t->answer.n_committed ? &ignored : e);
    if (t->answer.n_committed)
        rc = 0;
    if (!rc)
        rc = store_list_unused(s, &t->arena, &names, &n, e);
    if (rc)
        return rc;
    t->answer.unused = arena_array(&t->arena, char *, n + 1);
    for (int i = 0; i < n; i++)
        t->answer.unused[t->answer.n_unused++] = frame_text(names[i]);
    return rc;
}

// Takes away the probe of an attempt and what is older than it, of attempts before it. The probe of an
// attempt after it stays: a fence may be late.
static void discard_probes(const Weft__V1__Storage *ask, struct store *s)
{
    char probe[PROBE_NAME_MAX], probed[PROBE_NAME_MAX];
    probe_name(PROBE, ask, probe);
    probe_name(PROBED, ask, probed);
    store_discard(s, PROBE, probed);
    store_discard(s, PROBED, probed);
    store_discard(s, probe, NULL);
    store_discard(s, probed, NULL);
}

// Tidies up after an attempt, unless there is a greater attempt: then another attempt's fence has
// swept, or will.
static int tidy_folder(struct act *t, struct store *s, struct err *e)
{
    int64_t greatest = 0, attempt = (int64_t)t->ask->attempt;
    if (s->fd < 0)
        return 0;
    if (t->ask->attempt > ATTEMPT_MAX || !attempt)
        return err_set(
            e, ERR_INVALID,
            "the coordinator asked to fence a checkpoint folder without naming an attempt");
    int rc = store_fence(s, attempt, t->ask->attempt_id, &greatest, e);
    if (rc)
        return rc == ERR_FENCED ? 0 : rc;
    discard_probes(t->ask, s);
    store_sweep(s, attempt, INT64_MAX);
    return 0;
}

static int delete_folder(struct act *t, struct store *s, struct err *e)
{
    bool absent;
    int rc = store_destroy(s, t->s->root, &absent, e);
    t->answer.absent = !rc && absent;
    return rc;
}

// Lists the jobs beneath the root. Unlike the other acts it is about no single job's folder.
static int find_jobs(struct act *t, struct store *s, struct err *e)
{
    (void)s;
    return finder_list(t->s->root, t->cluster, &t->arena, &t->answer, e);
}

// Opens a file, which must be a regular one; a pipe is not waited for.
static int open_file(const char *root, const char *path, struct err *e)
{
    struct stat st;
    int fd, rc = root_open(root, path, O_RDONLY | O_NONBLOCK, 0, &fd, e);
    if (rc)
        return rc;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
        rc = err_set(e, ERR_INVALID, "%s is not a regular file", path);
    close(fd);
    return rc;
}

// Opens what a rank would open: of a pattern every file, since one that it could not open would send
// the job back here again and again. Without a data root relative paths start where this process does,
// and so do those of its ranks.
static int open_data(struct act *t, const char *path, struct err *e)
{
    const char *root = t->s->data_root, **files = &path;
    int n = 1, rc = t->ask->literal ? 0 : pattern_files(root, path, &t->arena, &files, &n, e);
    for (int i = 0; i < n && !rc; i++)
        rc = open_file(root, files[i], e);
    return rc;
}

// Whether an attempt could not make its folder there for good. What does not exist yet it makes.
static bool leaves_root(struct act *t, const char *dir, struct err *e)
{
    int fd, rc = root_open(t->s->root, dir, O_PATH | O_DIRECTORY, 0, &fd, e);
    if (!rc)
        close(fd);
    return rc == ERR_INVALID;
}

static void add_missing(struct act *t, int path, const struct err *why)
{
    Weft__V1__StorageDone *d = &t->answer;
    d->missing[d->n_missing++] = path;
    d->missing_why[d->n_missing_why++] = arena_strdup(&t->arena, why->text);
}

static int look_for_data(struct act *t, struct store *s, struct err *e)
{
    Weft__V1__StorageDone *d = &t->answer;
    (void)s;
    int n = (int)t->ask->n_paths;
    d->missing = arena_array(&t->arena, int32_t, n + 1);
    d->missing_why = arena_array(&t->arena, char *, n + 1);
    for (int i = 0; i < n; i++) {
        int rc = open_data(t, t->ask->paths[i], e);
        // A rank would fail in the same way later; failures that storage has at times do not count.
        if (rc == ERR_NOTFOUND || rc == ERR_INVALID || (rc == ERR_IO && e->forbidden))
            add_missing(t, i, e);
    }
    if (*t->ask->dir && leaves_root(t, t->ask->dir, e))
        add_missing(t, n, e);
    return 0;
}

static int read_rows(struct act *t, struct store *s, struct err *e)
{
    enum { PIECE_MAX = 256 << 10 }; // it shares the stream with heartbeats
    int fd, rc = s->fd < 0 ? 0 : rows_open(s->fd, &fd, e);
    if (rc || s->fd < 0 || fd < 0)
        return rc;
    t->answer.rows.data = arena_alloc(&t->arena, PIECE_MAX);
    ssize_t n = pread(fd, t->answer.rows.data, PIECE_MAX, t->ask->rows_from);
    t->answer.rows.len = n > 0 ? (size_t)n : 0;
    close(fd);
    return n < 0 ? err_set(e, ERR_IO, "cannot read metrics.jsonl") : 0;
}

// ---- a thread an act ----

static const struct {
    int (*fn)(struct act *, struct store *, struct err *);
    const char *what;
} acts[] = {
    [WEFT__V1__STORAGE_OP__STORAGE_WRITE] = {write_nonce, "write to"},
    [WEFT__V1__STORAGE_OP__STORAGE_RENAME] = {rename_probe, "rename a directory in"},
    [WEFT__V1__STORAGE_OP__STORAGE_READ] = {read_nonces, "see the other hosts' files in"},
    [WEFT__V1__STORAGE_OP__STORAGE_FENCE] = {fence_store, "fence"},
    [WEFT__V1__STORAGE_OP__STORAGE_TIDY] = {tidy_folder, "tidy"},
    [WEFT__V1__STORAGE_OP__STORAGE_DELETE] = {delete_folder, "remove"},
    [WEFT__V1__STORAGE_OP__STORAGE_FIND] = {find_jobs, "look for jobs in"},
    [WEFT__V1__STORAGE_OP__STORAGE_LOOK] = {look_for_data, "look for data in"},
    [WEFT__V1__STORAGE_OP__STORAGE_ROWS] = {read_rows, "read the metrics in"},
};

static bool has_no_room(const char *mount)
{
    enum { LEAST_BYTES = 1 << 20 };
    struct statvfs v;
    return !statvfs(mount, &v) &&
           (v.f_bavail * v.f_frsize < LEAST_BYTES || (v.f_files && !v.f_favail));
}

static void explain_failure(struct act *t, int rc, const struct err *e)
{
    char mount[PATH_MAX];
    const char *store = *t->answer.store ? t->answer.store : t->ask->dir;
    mount_point(*t->answer.store ? store : (t->s->root ? t->s->root : t->ask->base_dir), mount,
                sizeof mount);
    t->answer.config = rc == ERR_EXISTS || rc == ERR_INVALID;
    t->answer.full = rc == ERR_IO && has_no_room(mount);
    t->answer.why = arena_printf(&t->arena, "host %s cannot %s %s (mounted at %s): %s", t->s->name,
                                 acts[t->ask->op].what, store, mount, e->text);
}

static void push_answer(struct storage *s, const Weft__V1__StorageDone *m)
{
    struct storage_answer *a = heap_alloc(sizeof *a);
    a->message = message_copy(&m->base);
    pthread_mutex_lock(&s->mutex);
    list_append(&s->done, &a->link);
    pthread_mutex_unlock(&s->mutex);
    (void)eventfd_write(s->event, 1); // full means it is awake already
}

static void act_free(struct act *t)
{
    weft__v1__storage__free_unpacked(t->ask, NULL);
    arena_clear(&t->arena);
    free(t->cluster);
    free(t);
}

static enum act_kind kind_of(const Weft__V1__Storage *ask)
{
    return ask->op == WEFT__V1__STORAGE_OP__STORAGE_LOOK   ? ACT_LOOK
           : ask->op == WEFT__V1__STORAGE_OP__STORAGE_ROWS ? ACT_ROWS
                                                           : ACT_OF_JOB;
}

static void count_act(struct storage *s, enum act_kind kind, int by)
{
    s->running += by;
    s->of_kind[kind] += by;
    if (!s->running)
        pthread_cond_broadcast(&s->idle);
}

static void *run_act(void *arg)
{
    struct act *t = arg;
    struct storage *s = t->s;
    struct store store = {.fd = -1};
    struct err e = {0};
    enum act_kind kind = kind_of(t->ask);
    bool in_folder = t->ask->op != WEFT__V1__STORAGE_OP__STORAGE_LOOK &&
                     t->ask->op != WEFT__V1__STORAGE_OP__STORAGE_FIND;
    int rc = in_folder ? open_store(t, &store, &e) : 0;
    if (!rc)
        rc = acts[t->ask->op].fn(t, &store, &e);
    t->answer.ok = rc == 0;
    if (rc)
        explain_failure(t, rc, &e);
    push_answer(s, &t->answer);
    if (t->ask->op == WEFT__V1__STORAGE_OP__STORAGE_FENCE && t->answer.ok) {
        discard_probes(t->ask, &store);
        store_sweep(&store, (int64_t)t->ask->attempt, 0);
    }
    store_close(&store);
    act_free(t);
    pthread_mutex_lock(&s->mutex);
    count_act(s, kind, -1);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static struct act *act_new(struct storage *s, const Weft__V1__Storage *ask, const char *cluster)
{
    struct act *t = heap_alloc(sizeof *t);
    t->s = s;
    t->ask = message_copy(&ask->base);
    t->cluster = heap_strdup(cluster);
    weft__v1__storage_done__init(&t->answer);
    t->answer.op = t->ask->op;
    t->answer.job = t->ask->job;
    t->answer.attempt = t->ask->attempt;
    t->answer.attempt_id = t->ask->attempt_id;
    return t;
}

void storage_ask(struct storage *s, const Weft__V1__Storage *ask, const char *cluster)
{
    struct act *t = act_new(s, ask, cluster);
    pthread_attr_t at;
    pthread_t thread;
    bool known = (size_t)ask->op < sizeof acts / sizeof *acts && acts[ask->op].fn;
    pthread_attr_init(&at);
    pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&s->mutex);
    bool room = s->of_kind[kind_of(ask)] < threads_of[kind_of(ask)];
    if (known && room && !pthread_create(&thread, &at, run_act, t)) {
        count_act(s, kind_of(ask), 1);
        t = NULL;
    }
    pthread_mutex_unlock(&s->mutex);
    pthread_attr_destroy(&at);
    if (!t)
        return;
    t->answer.why = frame_text(known ? "the worker has too many acts in checkpoint folders to do"
                                     : "the coordinator asked for work on a checkpoint folder that "
                                       "this worker does not know");
    push_answer(s, &t->answer);
    act_free(t);
}

// ---- life ----

int storage_open(const struct storage_config *c, struct storage **out, struct err *e)
{
    struct storage *s = heap_alloc(sizeof *s);
    *out = NULL;
    if ((s->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        free(s);
        return err_errno(e, ERR_INTERNAL, "cannot make an eventfd");
    }
    s->root = c->root && *c->root ? heap_strdup(c->root) : NULL;
    s->data_root = c->data_root && *c->data_root ? heap_strdup(c->data_root) : NULL;
    s->host = heap_strdup(c->host);
    s->name = heap_strdup(c->name);
    pthread_mutex_init(&s->mutex, NULL);
    clock_cond_init(&s->idle);
    list_init(&s->done);
    *out = s;
    return 0;
}

int storage_fd(const struct storage *s)
{
    return s->event;
}

Weft__V1__StorageDone *storage_next(struct storage *s)
{
    Weft__V1__StorageDone *m = NULL;
    eventfd_t n;
    (void)eventfd_read(s->event, &n);
    pthread_mutex_lock(&s->mutex);
    if (!list_empty(&s->done)) {
        struct storage_answer *a = list_entry(s->done.next, struct storage_answer, link);
        list_remove(&a->link);
        m = a->message;
        free(a);
    }
    pthread_mutex_unlock(&s->mutex);
    return m;
}

void storage_close(struct storage *s)
{
    Weft__V1__StorageDone *m;
    int64_t until = clock_mono_ns() + CLOSE_S * CLOCK_S;
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    while (s->running && clock_cond_wait(&s->idle, &s->mutex, until))
        ;
    bool late = s->running > 0;
    pthread_mutex_unlock(&s->mutex);
    if (late)
        return;
    while ((m = storage_next(s)))
        weft__v1__storage_done__free_unpacked(m, NULL);
    close(s->event);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->mutex);
    free(s->root);
    free(s->data_root);
    free(s->host);
    free(s->name);
    free(s);
}
