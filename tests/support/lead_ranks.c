// SPDX-License-Identifier: Apache-2.0
// lead-ranks DIR JOB: trains a job with ranks of this machine and no daemon, for tests of ranks by
// themselves, for benchmarks, and where there is no gRPC. It is what a coordinator and an agent are to
// an attempt: it fences, chooses the checkpoint, starts the ranks over socket pairs, leads them
// (local_leader.h) and ends with the exit code of the rank that failed first. Run again it resumes.
//
//   -s key=value     overrides a setting of the job file
//   --rank PATH      weft-rank; default: the one beside this program, or one folder above it
//   --devices N      of this host's, which the ranks take in turn; default: one for each rank
//   --logs FOLDER    where rank-0003.log are; default DIR/logs
//   --env R:NAME=V   rank R alone has it in its environment
//   --host R:NAME    rank R is of another host by name: others reach it by TCP only
//   --listen R:ADDR  the address, with port 0, at which it is reached; default: 127.0.0.1:0 where any
//                    rank has --host
//
//   DIR/state        of the newest attempt: number, restore, step
//   DIR/metrics.jsonl, DIR/logs/, DIR/attempt-A/ with pages and sockets
//
// It prints how each rank has ended, and at the end what the ranks have logged above information,
// and whose fault the end is.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/entropy.h"
#include "common/base/flag.h"
#include "common/base/folder.h"
#include "common/base/log.h"
#include "common/ckpt/load.h"
#include "common/job/job.h"
#include "common/job/threads.h"
#include "common/plan/schema_list.h"
#include "worker/local_leader.h"

// What ranks are given to end by themselves: after one has ended badly, and after one is named, since
// a rank whose device does not answer takes 12 s.
enum { GRACE_S = 8, NAMED_GRACE_S = 15 };
enum { LISTS_MAX = 64, JOIN_S = 60, TURN_MS = 50 };

static char id[] = "00112233445566778899aabbccddeeff";

struct flags {
    const char *dir, *job_file, *rank, *logs;
    int devices;
    const char *overrides[200], *env[LISTS_MAX], *host[LISTS_MAX], *listen[LISTS_MAX];
    int noverrides, nenv, nhost, nlisten;
};
#define AT(member) offsetof(struct flags, member)
static const struct flag_row rows[] = {
    {"s", FLAG_LIST, AT(overrides), 0, 200, AT(noverrides)},
    {"rank", FLAG_TEXT, AT(rank), 0, 0, 0},
    {"devices", FLAG_NUMBER, AT(devices), 1, LOCAL_RANKS_MAX, 0},
    {"logs", FLAG_TEXT, AT(logs), 0, 0, 0},
    {"env", FLAG_LIST, AT(env), 0, LISTS_MAX, AT(nenv)},
    {"host", FLAG_LIST, AT(host), 0, LISTS_MAX, AT(nhost)},
    {"listen", FLAG_LIST, AT(listen), 0, LISTS_MAX, AT(nlisten)},
};

struct run {
    struct flags f;
    struct arena arena;
    struct job job;
    struct store store;
    struct store_entry *scan; // good checkpoints
    int nscan;
    char logs[PATH_MAX], pages[PATH_MAX], metrics[PATH_MAX], rank[PATH_MAX];
    unsigned char key[32];
    char attempt_id[ID_LEN], restore[64], hash[65];
    Weft__Rank__Assign assign;
    struct local_leader lead;
    int alive, signals, asked;
    int64_t kill_ns; // when the rest are killed; 0: not yet
    bool killed;
    off_t log_begins[LOCAL_RANKS_MAX];
    int code, lesser; // of the cause; to end with where no cause is known
};

// What "R:VALUE" of a list says of this rank; null: nothing.
static const char *find_value(const char *const *list, int n, int rank)
{
    char *end;
    for (int i = 0; i < n; i++)
        if (strtol(list[i], &end, 10) == rank && *end == ':')
            return end + 1;
    return NULL;
}

// ---- the attempt ----

static int read_job(struct run *u, struct err *e)
{
    struct job_errors errs = {0};
    struct buf text = {0};
    if (job_load(&u->arena, &weft_schema, u->f.job_file, u->f.overrides, u->f.noverrides, &u->job,
                 &errs))
        return job_errors_err(&errs, e);
    int n = (int)u->job.resources.devices;
    if (n > LOCAL_RANKS_MAX)
        return err_set(e, ERR_LIMIT, "at most %d ranks", LOCAL_RANKS_MAX);
    if (!u->job.resources.threads)
        u->assign.threads = (int32_t)threads_share(cores_usable(), n);
    job_print(&u->job, &text);
    job_hash(&u->job, u->hash);
    u->assign.job_text = arena_strdup(&u->arena, buf_str(&text));
    buf_clear(&text);
    return 0;
}

static void note_refused(void *arg, struct store_entry which, const struct err *e)
{
    (void)arg;
    log_warn("lead", "checkpoint of step %lld is damaged: %s", (long long)which.step, e->text);
}

static int choose_checkpoint(struct run *u, struct err *e)
{
    struct load l = {0};
    struct store_entry *all, chosen;
    int n, rc = store_scan(&u->store, &u->arena, &all, &n, e);
    if (rc)
        return rc;
    rc = load_open_newest_good(&l, &u->store, note_refused, u, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    snprintf(u->restore, sizeof u->restore, "%s", l.name);
    u->assign.restore_step = l.manifest.step;
    PRE(store_entry_parse(l.name, &chosen));
    load_close(&l);
    u->scan = arena_array(&u->arena, struct store_entry, n);
    for (int i = 0; i < n; i++)
        if (store_entry_compare(all[i], chosen) <= 0)
            u->scan[u->nscan++] = all[i];
    return 0;
}

static int fence(struct run *u, struct err *e)
{
    const struct store_owner owner = {id, id, u->job.name, u->assign.job_text, u->assign.threads};
    const char *dir = job_path(&u->job, &u->arena, u->job.checkpoint.dir);
    int64_t greatest = 0;
    char text[300];
    int rc = store_make(&u->store, NULL, dir, &owner, e);
    if (rc)
        return rc;
    (void)store_check_attempt(&u->store, 0, &greatest, NULL);
    u->assign.attempt = (uint64_t)greatest + 1;
    rc = entropy_id(u->attempt_id, e);
    rc = rc ? rc : entropy_bytes(u->key, sizeof u->key, e);
    rc = rc ? rc : store_fence(&u->store, greatest + 1, u->attempt_id, &greatest, e);
    rc = rc ? rc : choose_checkpoint(u, e);
    if (rc)
        return rc;
    store_sweep(&u->store, (int64_t)u->assign.attempt, 0);
    snprintf(text, sizeof text, "attempt %llu\nrestore %s\nstep %lld\n",
             (unsigned long long)u->assign.attempt, *u->restore ? u->restore : "none",
             (long long)u->assign.restore_step);
    return folder_write(u->f.dir, "state", text, FOLDER_LOOSE, e);
}

static int make_folders(struct run *u, struct err *e)
{
    char dir[PATH_MAX];
    int rc = folder_make(u->f.dir, e);
    if (rc)
        return rc;
    if (!realpath(u->f.dir, dir))
        return err_errno(e, ERR_IO, "cannot find %s", u->f.dir);
    u->f.dir = arena_strdup(&u->arena, dir);
    snprintf(u->logs, sizeof u->logs, "%s/logs", dir);
    if (u->f.logs)
        snprintf(u->logs, sizeof u->logs, "%s", u->f.logs);
    snprintf(u->metrics, sizeof u->metrics, "%s/metrics.jsonl", dir);
    return folder_make(u->logs, e);
}

static void fill_assign(struct run *u)
{
    Weft__Rank__Assign *a = &u->assign;
    a->job_hash = u->hash;
    a->job_id = a->cluster_id = a->run_id = id;
    a->attempt_id = u->attempt_id;
    a->key.data = u->key;
    a->key.len = sizeof u->key;
    a->store = frame_text(u->store.path);
    a->restore = u->restore;
    a->hang_after_ns = u->job.restart.hang_after;
    a->base_dir = frame_text(u->job.base_dir);
    a->metrics = u->metrics;
}

static void make_leader(struct run *u)
{
    const struct job_checkpoint *ck = &u->job.checkpoint;
    struct leader_config c = {.ranks = (int)u->job.resources.devices,
                              .steps = u->job.train.steps,
                              .hang_after_ns = u->job.restart.hang_after,
                              .join_ns = JOIN_S * CLOCK_S,
                              .keep = (int)ck->keep,
                              .keep_every = ck->keep_every,
                              .keep_best = ck->best == JOB_BEST_EVAL_LOSS,
                              .patience_ns = ck->patience};
    local_leader_init(&u->lead, &c, &u->assign, u->pages);
    for (int r = 0; r < c.ranks; r++) {
        Weft__Rank__Assign *a = &u->lead.ranks[r].assign;
        const char *host = find_value(u->f.host, u->f.nhost, r), *at;
        char place[200];
        at = find_value(u->f.listen, u->f.nlisten, r);
        a->device = r % (u->f.devices ? u->f.devices : c.ranks);
        a->listen = frame_text(at ? at : u->f.nhost ? "127.0.0.1:0" : "");
        snprintf(place, sizeof place, "host %s", host ? host : "here");
        leader_place(u->lead.leader, r, place);
    }
    local_leader_fence(&u->lead, u->scan, u->nscan);
}

// ---- ranks ----

// What the environment says already is not said again for a rank: what is its own stands first.
static char **make_environment(struct run *u, int rank)
{
    int n = 0, have = 0;
    while (environ[have])
        have++;
    char **all = arena_array(&u->arena, char *, have + u->f.nenv + 1), *end;
    for (int i = 0; i < u->f.nenv; i++)
        if (strtol(u->f.env[i], &end, 10) == rank && *end == ':')
            all[n++] = end + 1;
    memcpy(all + n, environ, sizeof *all * (size_t)have);
    all[n + have] = NULL;
    return all;
}

static int start_rank(struct run *u, int rank, struct err *e)
{
    char log[PATH_MAX + 40];
    const char *host = find_value(u->f.host, u->f.nhost, rank);
    char **own = environ;
    snprintf(log, sizeof log, "%s/rank-%04d.log", u->logs, rank);
    int text = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (text < 0)
        return err_errno(e, ERR_IO, "cannot open %s", log);
    u->log_begins[rank] = lseek(text, 0, SEEK_END);
    const struct local_start start = {u->rank, host ? host : "here",
                                      job_device_kind(u->job.resources.kind), text};
    environ = make_environment(u, rank);
    int rc = local_leader_start(&u->lead, rank, &start, e);
    environ = own;
    close(text);
    u->alive += !rc;
    return rc;
}

static void kill_all(struct run *u)
{
    u->killed = true;
    for (int r = 0; r < u->lead.n; r++)
        if (u->lead.ranks[r].pid > 0)
            (void)kill(u->lead.ranks[r].pid, SIGKILL);
}

static void note_end(struct run *u, int rank, int status)
{
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = signal ? 128 + signal : WEXITSTATUS(status);
    u->alive--;
    printf("rank %d ended with %d\n", rank, code);
    local_leader_ended(&u->lead, rank, signal ? 0 : code, signal);
    if (code == RANK_EXIT_DONE || u->killed)
        return;
    if (signal || rank_exit_is_cause(code))
        u->code = u->code ? u->code : code;
    else if (u->lesser != RANK_EXIT_LOST)
        u->lesser = code;
    int64_t kill_ns = clock_mono_ns() + GRACE_S * CLOCK_S;
    if (code != RANK_EXIT_DRAINED && (!u->kill_ns || kill_ns < u->kill_ns))
        u->kill_ns = kill_ns;
}

static void reap(struct run *u)
{
    for (int r = 0; r < u->lead.n; r++) {
        int status;
        pid_t pid = u->lead.ranks[r].pid;
        if (pid > 0 && waitpid(pid, &status, WNOHANG) == pid)
            note_end(u, r, status);
    }
}

static void take_signals(struct run *u)
{
    struct signalfd_siginfo info;
    while (read(u->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (u->asked++ == 0) {
            local_leader_stop(&u->lead, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
        } else {
            u->code = 128 + (int)info.ssi_signo;
            kill_all(u);
        }
    }
}

static int open_signals(struct run *u, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    u->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return u->signals < 0 ? err_errno(e, ERR_INTERNAL, "cannot read signals") : 0;
}

static void lead_all(struct run *u)
{
    while (u->alive) {
        local_leader_turn(&u->lead, TURN_MS);
        reap(u);
        take_signals(u);
        if (u->lead.failed && !u->kill_ns)
            u->kill_ns = clock_mono_ns() + NAMED_GRACE_S * CLOCK_S;
        if (u->kill_ns && !u->killed && clock_mono_ns() > u->kill_ns) {
            log_warn("lead", "%d ranks did not end by themselves and are killed", u->alive);
            kill_all(u);
        }
    }
}

// ---- the end ----

static void print_log(const struct run *u, int rank)
{
    char path[PATH_MAX + 40], line[5000];
    snprintf(path, sizeof path, "%s/rank-%04d.log", u->logs, rank);
    FILE *f = fopen(path, "re");
    if (!f || fseeko(f, u->log_begins[rank], SEEK_SET))
        return;
    while (fgets(line, sizeof line, f)) {
        const char *level = strchr(line, ' ');
        if (!level || strncmp(level, " info ", 6) != 0)
            fputs(line, stderr);
    }
    fclose(f);
}

static int find_rank(struct run *u, struct err *e)
{
    char *slash;
    if (u->f.rank)
        snprintf(u->rank, sizeof u->rank, "%s", u->f.rank);
    else if (!realpath("/proc/self/exe", u->rank))
        return err_errno(e, ERR_IO, "cannot find this program");
    for (int up = 0; up < 2 && !u->f.rank; up++) {
        if (!(slash = strrchr(u->rank, '/')))
            break;
        strcpy(slash, "/weft-rank");
        if (!access(u->rank, X_OK))
            return 0;
        *slash = 0;
    }
    return access(u->rank, X_OK) ? err_set(e, ERR_NOTFOUND, "there is no weft-rank") : 0;
}

static int run_all(struct run *u, struct err *e)
{
    int rc = find_rank(u, e);
    rc = rc ? rc : read_job(u, e);
    rc = rc ? rc : make_folders(u, e);
    rc = rc ? rc : fence(u, e);
    if (rc)
        return rc;
    if (u->assign.restore_step >= u->job.train.steps) {
        printf("the job is finished: step %lld is saved in %s/%s\n",
               (long long)u->assign.restore_step, u->store.path, u->restore);
        return 0;
    }
    snprintf(u->pages, sizeof u->pages, "%s/attempt-%llu", u->f.dir,
             (unsigned long long)u->assign.attempt);
    fill_assign(u);
    rc = open_signals(u, e);
    rc = rc ? rc : folder_make(u->pages, e);
    if (rc)
        return rc;
    make_leader(u);
    for (int r = 0; r < u->lead.n && !rc; r++)
        rc = start_rank(u, r, e);
    if (rc)
        kill_all(u);
    lead_all(u);
    for (int r = 0; r < u->lead.n; r++)
        print_log(u, r);
    if (u->lead.failed) {
        log_error("lead", "%s", u->lead.culprit.text);
        u->lesser = u->killed ? RANK_EXIT_LOST : u->lesser; // who hung and was killed has no code
    }
    local_leader_clear(&u->lead);
    close(u->signals);
    return rc;
}

int main(int argc, char **argv)
{
    static struct run u;
    struct err e = {0};
    int code;
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 3 || argv[1][0] == '-' ||
        flags_read_all(rows, sizeof rows / sizeof *rows, argc - 2, argv + 2, &u.f, &e)) {
        fprintf(stderr, "lead-ranks: %s\n", *e.text ? e.text : "DIR and JOB are needed");
        return RANK_EXIT_CONFIG;
    }
    u.f.dir = argv[1];
    u.f.job_file = argv[2];
    weft__rank__assign__init(&u.assign);
    u.store = (struct store){.fd = -1};
    arena_init(&u.arena);
    int rc = run_all(&u, &e);
    if (rc)
        log_error("lead", "%s", e.text);
    code = rc ? rank_exit_code(rc) : u.code ? u.code : u.lesser;
    store_close(&u.store);
    arena_clear(&u.arena);
    return code;
}
