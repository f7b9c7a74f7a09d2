// SPDX-License-Identifier: Apache-2.0
// DIR and its two users, rank 0 and the others; see solo.h. Files of a few lines are "key value"
// texts, written to a temporary file, synced and renamed.
#include "worker/rank/lead/solo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/job/threads.h"
#include "common/plan/schema_list.h"
#include "worker/rank/lead/rank_join.h"
#include "worker/rank/lead/saved_step.h"
#include "worker/rank/lead/solo_restore.h"

enum { TEXT_MAX = 8192, RETRY_MS = 5, SILENT_S = 2, CONNECT_S = 5 };

// The value of "key value" in a text; false when absent.
static bool text_value(const char *text, const char *key, char *out, size_t size)
{
    size_t n = strlen(key);
    for (const char *p = text; *p;) {
        const char *end = strchrnul(p, '\n');
        if (!strncmp(p, key, n) && p[n] == ' ') {
            snprintf(out, size, "%.*s", (int)(end - p - (ptrdiff_t)n - 1), p + n + 1);
            return true;
        }
        p = *end ? end + 1 : end;
    }
    return false;
}

// ---- the job ----

static void print_job(const struct job *job, struct arena *a, const char **text, char hash[65])
{
    struct buf b = {0};
    job_print(job, &b);
    *text = arena_strdup(a, buf_str(&b));
    job_hash(job, hash);
    buf_clear(&b);
}

int solo_job(const struct solo_options *o, struct arena *a, struct job *job, const char **text,
             char hash[65], struct buf *violations, struct err *e)
{
    struct job_errors errs = {0};
    char base[PATH_MAX];
    if (job_load(a, &weft_schema, o->job_file, o->overrides, o->noverrides, job, &errs)) {
        if (violations)
            job_errors_print(&errs, violations);
        (void)job_errors_err(&errs, e);
        return ERR_INVALID;
    }
    if (o->of && job->resources.devices != o->of)
        return err_set(e, ERR_INVALID, "the job's mesh has %lld devices, --of says %d",
                       (long long)job->resources.devices, o->of);
    if (job_check_devices(job, e))
        return ERR_INVALID;
    if (!realpath(job->base_dir, base))
        return err_errno(e, ERR_NOTFOUND, "cannot find the job's folder %s", job->base_dir);
    job->base_dir = arena_strdup(a, base);
    print_job(job, a, text, hash);
    return 0;
}

void solo_host(const struct solo_options *o, char *out, size_t size)
{
    char name[64] = "host", machine[64] = "";
    struct stat st = {0};
    if (o->host) {
        snprintf(out, size, "%s", o->host);
        return;
    }
    (void)gethostname(name, sizeof name - 1);
    (void)folder_read("/etc", "machine-id", machine, sizeof machine, NULL);
    machine[strcspn(machine, "\n")] = 0;
    (void)stat("/proc/self/ns/net", &st);
    snprintf(out, size, "%s-%.8s-%llu", name, machine, (unsigned long long)st.st_ino);
}

// ---- rank 0 takes DIR ----

static int make_dir(const char *path, struct err *e)
{
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", path);
    return 0;
}

static int open_dir(const struct solo_options *o, struct solo *s, struct err *e)
{
    char real[PATH_MAX];
    int rc = make_dir(o->dir, e);
    if (rc)
        return rc;
    if (!realpath(o->dir, real) || strlen(real) >= sizeof s->dir - 100)
        return err_errno(e, ERR_IO, "cannot resolve %s", o->dir);
    strcpy(s->dir, real);
    return 0;
}

// Moves the state of another job to DIR/old-<n>, the first free. Logs stay: the parent of the ranks
// writes to them already, and each line names its job.
static int move_aside(struct solo *s, struct err *e)
{
    static const char *const names[] = {"job.yaml", "state", "saved", "metrics.jsonl", "id"};
    char old[PATH_MAX], from[PATH_MAX], to[PATH_MAX];
    int n = 1;
    for (;; n++) {
        snprintf(old, sizeof old, "%s/old-%d", s->dir, n);
        if (!mkdir(old, 0700))
            break;
        if (errno != EEXIST)
            return err_errno(e, ERR_IO, "cannot make %s", old);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) { // id last: it says who owns DIR
        snprintf(from, sizeof from, "%s/%s", s->dir, names[i]);
        if ((size_t)snprintf(to, sizeof to, "%s/%s", old, names[i]) >= sizeof to)
            return err_set(e, ERR_INVALID, "the path %s is too long", old);
        if (rename(from, to) && errno != ENOENT)
            return err_errno(e, ERR_IO, "cannot move %s aside", from);
    }
    log_info("solo", "the old state is in %s", old);
    return 0;
}

// DIR must outlive a power cut as soon as the id in it counts. A parent that we may not open is
// left to whoever may.
static int sync_parent(const struct solo *s, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/..", s->dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (fd < 0 && errno == EACCES)
        return 0;
    if (fd < 0 || fsync(fd))
        rc = err_errno(e, ERR_IO, "cannot sync the folder of %s", s->dir);
    if (fd >= 0)
        close(fd);
    return rc;
}

// job.yaml and id as the job is now; id last: it says who owns DIR.
static int write_id(const struct solo *s, const struct assignment *a, struct err *e)
{
    char text[TEXT_MAX], identity[65];
    int rc = folder_write(s->dir, "job.yaml", a->job_text, FOLDER_DURABLE, e);
    job_identity(&s->job, identity);
    snprintf(text, sizeof text, "job %s\ncluster %s\nrun %s\nidentity %s\nhash %s\n", a->job_id,
             a->cluster_id, a->run_id, identity, a->job_hash);
    return rc ? rc : folder_write(s->dir, "id", text, FOLDER_DURABLE, e);
}

static int new_id(struct solo *s, struct assignment *a, struct err *e)
{
    int rc;
    if ((rc = entropy_id(a->job_id, e)) || (rc = entropy_id(a->cluster_id, e)) ||
        (rc = entropy_id(a->run_id, e)) || (rc = sync_parent(s, e)))
        return rc;
    return write_id(s, a, e);
}

static bool has_value(const char *text, const char *key, const char *want)
{
    char value[80];
    return text_value(text, key, value, sizeof value) && !strcmp(value, want);
}

// Reads the job that DIR belongs to from its job.yaml. An older weft may have printed the same job
// in other words, so jobs are compared key by key, not as texts.
static bool read_job_before(const struct solo *s, struct arena *a, struct job *before)
{
    struct job_errors errs = {0};
    char *text = arena_array(a, char, JOB_MAX_BYTES);
    return !folder_read(s->dir, "job.yaml", text, JOB_MAX_BYTES, NULL) &&
           !job_parse(a, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, before, &errs);
}

static void tell_changes(const char *id, const struct job *before, const struct job *now,
                         struct buf *changes)
{
    char identity[65];
    job_identity(before, identity);
    job_changes(before, now, changes);
    if (!has_value(id, "identity", identity))
        buf_printf(changes, "%sresolved by another version of weft", changes->len ? "; " : "");
}

// Prints the job anew into the assignment after its threads were decided, and logs them with `why`.
static void update_job_text(const struct solo *s, struct assignment *a, const char *why)
{
    char hash[65];
    int64_t threads = s->job.resources.threads;
    print_job(&s->job, &a->arena, &a->job_text, hash);
    a->job_hash = arena_strdup(&a->arena, hash);
    if (threads)
        log_info("solo", "a device uses %lld thread%s: %s", (long long)threads,
                 threads == 1 ? "" : "s", why);
}

static int begin_anew(struct solo *s, struct assignment *a, struct err *e)
{
    int rc = move_aside(s, e);
    return rc ? rc : new_id(s, a, e);
}

// A job file that names no threads goes on with those that DIR was begun with.
static void keep_threads(const struct solo_options *o, struct solo *s, struct assignment *a)
{
    struct arena kept;
    struct job before;
    if (s->job.resources.threads)
        return;
    arena_init(&kept);
    if (!o->fresh && read_job_before(s, &kept, &before))
        threads_keep(&s->job, &before);
    arena_clear(&kept);
    update_job_text(s, a, "the run was begun with as many");
}

// Whether DIR, with this id, belongs to a job that this one may continue. `changes` gets what differs;
// if it may not, the keys that make it another training.
static bool may_continue(const struct solo *s, const char *id, struct buf *changes)
{
    struct arena a;
    struct job before;
    char identity[65];
    job_identity(&s->job, identity);
    bool same = has_value(id, "identity", identity);
    arena_init(&a);
    if (read_job_before(s, &a, &before)) {
        job_identity_differences(&before, &s->job, changes);
        same = !changes->len;
        if (same)
            tell_changes(id, &before, &s->job, changes);
    }
    arena_clear(&a);
    return same;
}

// Whether the job that DIR has left nothing that another one would lose: no checkpoint, no metrics.
static bool has_left_nothing(const struct solo *s)
{
    struct arena a;
    struct job before;
    arena_init(&a);
    bool nothing = read_job_before(s, &a, &before) && before.metrics.jsonl &&
                   !saved_step_read(s->dir) && !saved_step_trained(s->dir);
    arena_clear(&a);
    return nothing;
}

static int refuse_job(const struct solo *s, const char *keys, struct err *e)
{
    return err_set(e, ERR_EXISTS,
                   "%s belongs to another job%s%s (compare %s/job.yaml); use --new to start afresh",
                   s->dir, *keys ? ", which differs in " : "", keys, s->dir);
}

// id: the text of DIR/id. If this job continues the one that DIR has with changes, they go to
// s->changes, and settle_changes() writes DIR once the checkpoint is known.
static int compare_job(struct solo *s, struct assignment *a, const char *id, struct err *e)
{
    struct buf changes = {0};
    int rc = 0;
    bool whole = text_value(id, "job", a->job_id, sizeof a->job_id) &&
                 text_value(id, "cluster", a->cluster_id, sizeof a->cluster_id) &&
                 text_value(id, "run", a->run_id, sizeof a->run_id);
    bool same = whole && may_continue(s, id, &changes);
    if (same && !has_value(id, "hash", a->job_hash)) {
        s->changes = arena_strdup(&a->arena, buf_str(&changes));
    } else if (!same && whole && changes.len && has_left_nothing(s)) {
        log_warn("solo", "nothing was saved yet: begins anew with another %s", buf_str(&changes));
        rc = begin_anew(s, a, e);
    } else if (!same) {
        rc = refuse_job(s, buf_str(&changes), e);
    }
    buf_clear(&changes);
    return rc;
}

// Reads DIR/id, or makes it; another job than the one that DIR has trained is refused.
static int settle_id(const struct solo_options *o, struct solo *s, struct assignment *a,
                     struct err *e)
{
    char text[TEXT_MAX];
    int rc = folder_read(s->dir, "id", text, sizeof text, e);
    if (rc == ERR_NOTFOUND)
        return new_id(s, a, e);
    if (rc)
        return rc;
    if (o->fresh)
        return begin_anew(s, a, e);
    rc = compare_job(s, a, text, e);
    s->had_step = saved_step_read(s->dir);
    return rc;
}

// The job has changed since DIR was written. It continues as it is now, unless it would end before
// the step that it has reached.
static int settle_changes(struct solo *s, const struct assignment *a, struct err *e)
{
    if (a->restore && a->restore_step > s->job.train.steps)
        return err_set(e, ERR_INVALID,
                       "train.steps: is %lld, and %s has come to step %lld already; give at least "
                       "that many, or use --new to start afresh",
                       (long long)s->job.train.steps, s->dir, (long long)a->restore_step);
    if (!s->changes)
        return 0;
    log_warn("solo", "the run goes on from step %lld on %d ranks with a changed job: %s",
             (long long)a->restore_step, a->ranks, s->changes);
    return write_id(s, a, e);
}

// ---- the epoch ----

static int fence_epoch(struct solo *s, struct assignment *a, struct err *e)
{
    char text[TEXT_MAX], value[64];
    int64_t greatest = 0, epoch = 0, tries = 0;
    int rc = store_check_epoch(&s->store, 0, &greatest, e);
    if (rc && rc != ERR_FENCED)
        return rc;
    if (!folder_read(s->dir, "state", text, sizeof text, NULL) &&
        text_value(text, "epoch", value, sizeof value))
        epoch = atoll(value);
    if (epoch < 0 || epoch > EPOCH_MAX)
        return err_set(e, ERR_DATA, "%s/state is damaged: epoch %s is not one of 1 to %d", s->dir,
                       value, EPOCH_MAX);
    if ((rc = entropy_id(a->attempt_id, e)))
        return rc;
    epoch = 1 + (epoch > greatest ? epoch : greatest);
    while ((rc = store_fence(&s->store, epoch, a->attempt_id, &greatest, e)) == ERR_FENCED &&
           tries++ < 100)
        epoch = 1 + greatest;
    a->epoch = (uint64_t)epoch;
    return rc;
}

static int store_state(const struct solo *s, const struct assignment *a, struct err *e)
{
    char text[TEXT_MAX];
    snprintf(text, sizeof text, "epoch %llu\nattempt %s\nrestore %s\nstep %lld\nfinished %d\n",
             (unsigned long long)a->epoch, a->attempt_id, a->restore ? a->restore : "none",
             (long long)a->restore_step, s->finished);
    return folder_write(s->dir, "state", text, FOLDER_DURABLE, e);
}

// The number of "epoch-E", or 0.
static uint64_t parse_epoch(const char *name)
{
    char *end;
    if (strncmp(name, "epoch-", 6))
        return 0;
    uint64_t n = strtoull(name + 6, &end, 10);
    return *end ? 0 : n;
}

static void remove_old_epochs(const struct solo *s)
{
    DIR *d = opendir(s->dir);
    struct dirent *en;
    char path[PATH_MAX];
    while (d && (en = readdir(d))) {
        if (!parse_epoch(en->d_name))
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", s->dir, en->d_name) < sizeof path)
            folder_remove(path);
    }
    if (d)
        closedir(d);
}

static int make_epoch(const struct solo_options *o, struct solo *s, struct assignment *a,
                      struct err *e)
{
    char path[PATH_MAX];
    int rc, fd;
    remove_old_epochs(s);
    snprintf(s->epoch_dir, sizeof s->epoch_dir, "%s/epoch-%llu", s->dir,
             (unsigned long long)a->epoch);
    if ((rc = make_dir(s->epoch_dir, e)) || (rc = entropy_bytes(a->key, sizeof a->key, e)))
        return rc;
    snprintf(path, sizeof path, "%s/key", s->epoch_dir);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, a->key, sizeof a->key) != (ssize_t)sizeof a->key)
        rc = err_errno(e, ERR_IO, "cannot write %s", path);
    if (fd >= 0)
        close(fd);
    snprintf(path, sizeof path, "%s/sock", s->epoch_dir);
    if (rc || (rc = join_listen_unix(path, &s->unix_fd, e)))
        return rc;
    return o->listen ? join_listen_tcp(o->listen, &s->tcp_fd, s->tcp_addr, sizeof s->tcp_addr, e)
                     : 0;
}

static int open_store(struct solo *s, struct assignment *a, struct err *e)
{
    struct store_owner owner = solo_owner(s, a);
    const char *dir = job_path(&s->job, &a->arena, s->job.checkpoint.dir);
    int rc = store_make(&s->store, dir, &owner, e);
    if (!rc)
        a->store = arena_strdup(&a->arena, s->store.path);
    return rc;
}

int solo_lead(const struct solo_options *o, struct solo *s, struct assignment *a, struct err *e)
{
    char hash[65];
    memset(s, 0, sizeof *s);
    s->lock_fd = s->unix_fd = s->tcp_fd = -1;
    int rc = solo_job(o, &a->arena, &s->job, &a->job_text, hash, NULL, e);
    if (rc)
        return rc;
    a->job_hash = arena_strdup(&a->arena, hash);
    a->base_dir = s->job.base_dir;
    a->ranks = (int)s->job.resources.devices;
    a->device = -1;
    a->hang_after_ns = s->job.restart.hang_after;
    solo_host(o, s->host, sizeof s->host);
    a->host = s->host;
    if ((rc = open_dir(o, s, e)) || (rc = folder_lock(s->dir, &s->lock_fd, e)))
        return rc;
    keep_threads(o, s, a);
    if ((rc = settle_id(o, s, a, e)) || (rc = solo_restore_check(s, a, e)) ||
        (rc = open_store(s, a, e)) || (rc = fence_epoch(s, a, e)) ||
        (rc = solo_restore_choose(s, a, e)) || (rc = settle_changes(s, a, e)))
        return rc;
    solo_restore_tell(s, a);
    s->finished = a->restore && a->restore_step >= s->job.train.steps;
    if ((rc = store_state(s, a, e)))
        return rc;
    if (a->restore_step != s->had_step)
        saved_step_write(s->dir, a->restore_step);
    if (s->finished)
        return 0;
    store_sweep(&s->store, (int64_t)a->epoch, 0);
    return make_epoch(o, s, a, e);
}

bool solo_threads_are_open(const struct solo *s)
{
    return !s->job.resources.threads;
}

int solo_settle_threads(struct solo *s, struct assignment *a, const struct rank_cores *cores,
                        struct err *e)
{
    char why[RANK_HOST_MAX + 80];
    s->job.resources.threads = rank_cores_share(cores, a->ranks, why, sizeof why);
    update_job_text(s, a, why);
    store_close(&s->store); // its OWNER has the job's text
    int rc = open_store(s, a, e);
    return rc ? rc : write_id(s, a, e);
}

int solo_publish(const struct solo *s, const struct assignment *a, struct err *e)
{
    char text[TEXT_MAX];
    snprintf(text, sizeof text, "epoch %llu\nhost %s\nunix unix:%s/sock\n%s%s%s",
             (unsigned long long)a->epoch, s->host, s->epoch_dir, s->tcp_addr[0] ? "tcp " : "",
             s->tcp_addr, s->tcp_addr[0] ? "\n" : "");
    // Not synced, for after a reboot it is of no use.
    return folder_write(s->epoch_dir, "address", text, FOLDER_LOOSE, e);
}

void solo_close(struct solo *s)
{
    static const char *const names[] = {"address", "key", "sock"};
    char path[PATH_MAX];
    for (size_t i = 0; s->epoch_dir[0] && i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", s->epoch_dir, names[i]);
        (void)unlink(path);
    }
    store_close(&s->store);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->lock_fd = -1;
}

// ---- another rank finds rank 0 ----

// The greatest epoch that has an address; 0: none.
static uint64_t find_newest_epoch(const struct solo *s)
{
    DIR *d = opendir(s->dir);
    struct dirent *en;
    char path[PATH_MAX];
    uint64_t best = 0;
    while (d && (en = readdir(d))) {
        uint64_t n = parse_epoch(en->d_name);
        if (n <= best ||
            (size_t)snprintf(path, sizeof path, "%s/%s/address", s->dir, en->d_name) >= sizeof path)
            continue;
        if (!access(path, R_OK))
            best = n;
    }
    if (d)
        closedir(d);
    return best;
}

static int read_key(const struct solo *s, unsigned char key[32], struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/key", s->epoch_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, key, 32);
    if (fd >= 0)
        close(fd);
    return n == 32 ? 0 : err_set(e, ERR_PEER, "cannot read %s", path);
}

static int try_join(int rank, int ranks, struct solo *s, int *fd, struct err *e)
{
    char text[TEXT_MAX], host[RANK_HOST_MAX] = "", addr[PATH_MAX] = "";
    unsigned char key[32];
    struct rank_cores cores;
    uint64_t epoch = find_newest_epoch(s);
    if (!epoch)
        return err_set(e, ERR_PEER, "rank 0 has not published its address in %s", s->dir);
    snprintf(s->epoch_dir, sizeof s->epoch_dir, "%s/epoch-%llu", s->dir, (unsigned long long)epoch);
    int rc = folder_read(s->epoch_dir, "address", text, sizeof text, e);
    if (rc || read_key(s, key, e))
        return ERR_PEER;
    (void)text_value(text, "host", host, sizeof host);
    if (!text_value(text, strcmp(host, s->host) ? "tcp" : "unix", addr, sizeof addr))
        return err_set(e, ERR_INVALID,
                       "rank 0 is on host %s and this is %s: start rank 0 with --listen", host,
                       s->host);
    rank_cores_read(s->host, &cores);
    struct join_who who = {rank, ranks, epoch, s->host, key, &cores};
    return join_connect(addr, &who, clock_mono_ns() + CONNECT_S * CLOCK_S, fd, e);
}

static bool stop_pending(void)
{
    sigset_t set;
    return !sigpending(&set) && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

// Whether DIR says that this job is done, to as many steps as it has now, and nobody leads it.
static bool says_finished(const struct solo *s)
{
    char text[TEXT_MAX], steps[24];
    struct buf changes = {0};
    snprintf(steps, sizeof steps, "%lld", (long long)s->job.train.steps);
    bool ours = !folder_read(s->dir, "state", text, sizeof text, NULL) &&
                has_value(text, "finished", "1") && has_value(text, "step", steps) &&
                !folder_read(s->dir, "id", text, sizeof text, NULL) &&
                may_continue(s, text, &changes);
    buf_clear(&changes);
    return ours;
}

static int wait_for_leader(const struct solo_options *o, struct solo *s, int64_t deadline_ns,
                           int *fd, bool *finished, struct err *e)
{
    struct err last = {0};
    int64_t say_ns = clock_mono_ns() + SILENT_S * CLOCK_S;
    int ranks = (int)s->job.resources.devices, rc;
    for (;;) {
        if ((rc = try_join(o->rank, ranks, s, fd, &last)) != ERR_PEER && rc != ERR_TIMEOUT)
            break;
        if ((*finished = !o->fresh && says_finished(s)))
            return 0;
        if (stop_pending())
            return err_set(e, ERR_ABORTED, "asked to stop before rank 0 was there");
        if (clock_mono_ns() > deadline_ns)
            return err_set(e, ERR_TIMEOUT, "cannot join rank 0: %s", last.text);
        if (clock_mono_ns() > say_ns) {
            say_ns = INT64_MAX;
            log_warn("solo",
                     "waiting for rank 0 in %s: %s; is it started with the same --solo DIR?",
                     s->dir, last.text);
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (rc)
        *e = last;
    return rc;
}

int solo_find(const struct solo_options *o, struct solo *s, int64_t deadline_ns, int *fd,
              bool *finished, struct err *e)
{
    struct arena a;
    const char *text;
    char hash[65];
    memset(s, 0, sizeof *s);
    s->lock_fd = s->unix_fd = s->tcp_fd = -1;
    *finished = false;
    solo_host(o, s->host, sizeof s->host);
    arena_init(&a);
    int rc = solo_job(o, &a, &s->job, &text, hash, NULL, e);
    if (!rc && o->rank >= s->job.resources.devices)
        rc = err_set(e, ERR_INVALID, "the job's mesh has %lld devices: no rank %d",
                     (long long)s->job.resources.devices, o->rank);
    if (!rc)
        rc = open_dir(o, s, e);
    if (!rc)
        rc = wait_for_leader(o, s, deadline_ns, fd, finished, e);
    s->job = (struct job){0}; // it lay in the arena
    arena_clear(&a);
    return rc;
}
