// SPDX-License-Identifier: Apache-2.0
// weft-rank: one rank of a training job, led by an agent (--fd) or by rank 0 (--solo). With --solo
// and no --rank it is the parent of all ranks; with --probe it prints what devices there are.
//
// Errors travel up as values and are logged here, once; the exit code comes from rank_exit_code().
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/host_address.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "common/base/url.h"
#include "common/explain/plan_report.h"
#include "common/plan/plan.h"
#include "worker/rank/lead/saved_step.h"
#include "worker/rank/lead/solo.h"
#include "worker/rank/lead/solo_leader.h"
#include "worker/rank/lead/spawn.h"
#include "worker/rank/lead/status.h"
#include "worker/rank/probe.h"
#include "worker/rank/process.h"
#include "worker/rank/warm.h"

enum {
    OVERRIDES_MAX = 200,
    JOIN_S = 60,     // all ranks find each other
    LAST_WAIT_S = 6, // rank 0 waits for the others' end after its own bad one
    END_WAIT_S = 60, // after a good one
};

static const char usage[] =
    "usage: weft-rank --solo DIR --job FILE [-s key=value]... [--of N] [--rank R]\n"
    "                 [--host NAME] [--listen HOST:PORT] [--new]\n"
    "       weft-rank --probe --kind KIND [--devices N]\n"
    "       weft-rank --fd N --dir DIR [--parent PID] [--rank R] [--host NAME] [--kind KIND]\n"
    "\n"
    "Trains the job over N ranks, with DIR as the place of state, logs and metrics. Without "
    "--rank\n"
    "all ranks run here. Run the same command again to continue after any ending.\n"
    "\n"
    "  -s key=value      overrides a setting of the job file\n"
    "  --of N            the number of ranks; default: what the job's mesh says\n"
    "  --rank R          runs this rank alone; the caller starts the others\n"
    "  --host NAME       ranks with the same NAME share memory; default: this machine\n"
    "  --listen H:PORT   this rank's address for ranks of other hosts; PORT may be 0\n"
    "  --new             DIR may belong to another job: its state is moved aside\n"
    "\n"
    "--probe opens the devices of a kind (cpu, cuda) and prints what they are, as one line of "
    "JSON.\n"
    "--fd is for agents: the rank takes its orders from the socket N.\n";

// ---- flags ----

struct rank_flags {
    struct solo_options solo; // with --fd only host and parent of these
    int fd;                   // −1: no agent leads
    const char *dir;          // --dir
    bool probe;
    const char *kind;
    int devices;
    const char *overrides[OVERRIDES_MAX];
};

// Refuses flags of several modes, and a mode of which a flag is missing.
static int check_flags(const struct rank_flags *f, struct err *e)
{
    const struct solo_options *o = &f->solo;
    if (o->host && (!*o->host || strlen(o->host) >= RANK_HOST_MAX))
        return err_set(e, ERR_INVALID, "--host is a name of 1 to %d characters", RANK_HOST_MAX - 1);
    if (f->probe + (f->fd >= 0) + (o->dir != NULL) > 1)
        return err_set(e, ERR_INVALID, "--solo, --fd and --probe exclude each other");
    if (f->probe)
        return f->kind ? 0 : err_set(e, ERR_INVALID, "--probe needs --kind");
    if (f->fd >= 0)
        return f->dir ? 0 : err_set(e, ERR_INVALID, "--fd needs --dir");
    if (!o->dir || !o->job_file)
        return err_set(e, ERR_INVALID, "--solo DIR and --job FILE are needed");
    return 0;
}

#define AT(member) offsetof(struct rank_flags, member)
static const struct flag_row rows[] = {
    {"solo", FLAG_TEXT, AT(solo.dir), 0, 0, 0},
    {"job", FLAG_TEXT, AT(solo.job_file), 0, 0, 0},
    {"s", FLAG_LIST, AT(overrides), 0, OVERRIDES_MAX, AT(solo.noverrides)},
    {"of", FLAG_NUMBER, AT(solo.of), 1, RANK_MAX, 0},
    {"rank", FLAG_NUMBER, AT(solo.rank), 0, RANK_MAX - 1, 0},
    {"host", FLAG_TEXT, AT(solo.host), 0, 0, 0},
    {"listen", FLAG_TEXT, AT(solo.listen), 0, 0, 0},
    {"new", FLAG_SWITCH, AT(solo.fresh), 0, 0, 0},
    {"parent", FLAG_NUMBER, AT(solo.parent), 1, INT32_MAX, 0},
    {"fd", FLAG_NUMBER, AT(fd), 0, INT32_MAX, 0},
    {"dir", FLAG_TEXT, AT(dir), 0, 0, 0},
    {"probe", FLAG_SWITCH, AT(probe), 0, 0, 0},
    {"kind", FLAG_TEXT, AT(kind), 0, 0, 0},
    {"devices", FLAG_NUMBER, AT(devices), 1, HOST_DEVICES_MAX, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

// What cannot be an address. A name that nobody resolves just now is looked up again when it is used.
static int check_listen(const char *listen, struct err *e)
{
    char host[HOST_ADDRESS_MAX];
    const char *colon = strrchr(listen, ':');
    if (!colon || (size_t)(colon - listen) >= sizeof host)
        return err_set(e, ERR_INVALID, "--listen: '%s' is not HOST:PORT", listen);
    snprintf(host, sizeof host, "%.*s", (int)(colon - listen), listen);
    return host_address_check(host, e) == ERR_INVALID ? err_wrap(e, "--listen") : 0;
}

static int parse_flags(int argc, char **argv, struct rank_flags *all, struct err *e)
{
    int rc = flags_read_all(rows, ROWS, argc, argv, all, e);
    if (!rc && all->solo.dir && url_refuse(all->solo.dir, e))
        rc = err_wrap(e, "--solo");
    if (!rc && all->solo.listen)
        rc = check_listen(all->solo.listen, e);
    all->solo.overrides = all->overrides;
    return rc ? rc : check_flags(all, e);
}

// ---- one rank of a solo ----

struct solo_rank { // what one rank's process holds, freed at its end
    struct solo solo;
    struct process process;
    struct assignment plan; // rank 0: what it assigns
    struct solo_leader *lead;
    struct status status;
    bool leads, shown;
    char metrics[4100], listen[300];
};

static void on_row(void *ctx, const struct step_row *row)
{
    struct solo_rank *p = ctx;
    status_row(&p->status, row);
}

static void on_saved(void *ctx, int64_t step)
{
    struct solo_rank *p = ctx;
    status_saved(&p->status, step);
    saved_step_write(p->solo.dir, step);
}

static int on_met(void *ctx, const struct rank_cores *cores, struct err *e)
{
    struct solo_rank *p = ctx;
    return solo_settle_threads(&p->solo, &p->plan, cores, e);
}

// Rank 0 takes DIR and starts to lead; *fd is its own link's end, −1 when the job is finished.
static int lead_solo(struct solo_rank *p, const struct solo_options *o, int *fd, struct err *e)
{
    *fd = -1;
    int rc = solo_lead(o, &p->solo, &p->plan, e);
    if (rc || p->solo.finished)
        return rc;
    const struct job_checkpoint *ck = &p->solo.job.checkpoint;
    status_init(&p->status, 1);
    p->shown = true;
    if (p->plan.restore_step > 0)
        p->status.saved_step = p->plan.restore_step;
    snprintf(p->metrics, sizeof p->metrics, "%s/metrics.jsonl", p->solo.dir);
    p->plan.metrics = p->metrics;
    struct solo_leader_config c = {
        .assignment = &p->plan,
        .unix_fd = p->solo.unix_fd,
        .tcp_fd = p->solo.tcp_fd,
        .dir = p->solo.dir,
        .page_dir = p->solo.epoch_dir,
        .steps = p->solo.job.train.steps,
        .keep = (int)ck->keep,
        .keep_every = ck->keep_every,
        .patience_ns = ck->patience,
        .scan = p->solo.scan,
        .nscan = p->solo.nscan,
        .join_ns = JOIN_S * CLOCK_S,
        .on_met = solo_threads_are_open(&p->solo) ? on_met : NULL,
        .met_ctx = p,
        .on_row = on_row,
        .on_saved = on_saved,
        .ctx = p,
    };
    if ((rc = solo_leader_start(&c, &p->lead, fd, e)))
        return rc;
    return solo_publish(&p->solo, &p->plan, e);
}

// The address for other hosts' collectives: --listen's host, any port.
static const char *choose_listen(struct solo_rank *p, const struct solo_options *o)
{
    const char *colon = o->listen ? strrchr(o->listen, ':') : NULL;
    if (!colon)
        return NULL;
    snprintf(p->listen, sizeof p->listen, "%.*s:0", (int)(colon - o->listen), o->listen);
    return p->listen;
}

static int train_rank(struct solo_rank *p, const struct solo_options *o, int fd, struct err *e)
{
    struct process_options po = {
        .fd = fd, .host = p->solo.host, .dir = p->solo.epoch_dir, .listen = choose_listen(p, o)};
    int code = process_train(&p->process, &po, e);
    bool good = code == RANK_EXIT_DONE || code == RANK_EXIT_DRAINED;
    solo_leader_stop(p->lead, (good ? END_WAIT_S : LAST_WAIT_S) * CLOCK_S);
    return code;
}

static void clear_rank(struct solo_rank *p)
{
    if (p->leads)
        solo_close(&p->solo);
    process_clear(&p->process);
    arena_clear(&p->plan.arena);
}

static void print_finished(const struct solo_rank *p)
{
    plain_printf(stdout, "the job is finished: step %lld is saved in %s/%s\n",
                 (long long)p->plan.restore_step, p->plan.store, p->plan.restore);
    plain_printf(stdout, "metrics     %s/metrics.jsonl\nuse --new to train it again\n",
                 p->solo.dir);
    fflush(stdout);
}

// Starts to prepare what the backend's libraries prepare at their first use, while the ranks meet.
static struct warm *start_warm_up(const struct rank_flags *f)
{
    return warm_start(f->kind && *f->kind ? f->kind : "cpu");
}

static int run_rank(const struct rank_flags *f)
{
    const struct solo_options *o = &f->solo;
    struct solo_rank *p = calloc(1, sizeof *p);
    struct err e = {0};
    bool finished = false;
    int fd = -1, code, rc;
    PRE(p != NULL);
    struct warm *warm = start_warm_up(f);
    process_init(&p->process);
    p->solo.lock_fd = -1;
    p->leads = o->rank == 0;
    log_context(NULL, o->rank);
    if (p->leads)
        rc = lead_solo(p, o, &fd, &e);
    else
        rc = solo_find(o, &p->solo, clock_mono_ns() + JOIN_S * CLOCK_S, &fd, &finished, &e);
    if (rc) {
        code = rc == ERR_ABORTED ? RANK_EXIT_DRAINED : rank_exit_code(rc);
        // That this rank was asked to stop is no error: people should read why rank 0 failed.
        log_line(rc == ERR_ABORTED ? LOG_INFO : LOG_ERROR, "rank", "%s", e.text);
        solo_leader_stop(p->lead, 0);
    } else if (fd < 0) {
        code = RANK_EXIT_DONE;
        if (p->leads)
            print_finished(p);
    } else {
        code = train_rank(p, o, fd, &e);
    }
    if (p->shown)
        status_finish(&p->status, code, p->solo.dir, p->plan.store);
    clear_rank(p);
    free(p);
    warm_join(warm);
    return code;
}

// Dies with its parent, and at once if that is gone already. 0: the parent is a wrapper, not known.
static void tie_to_parent(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (parent && getppid() != parent)
        _exit(RANK_EXIT_LOST);
}

// Becomes WEFT_RANK_WRAPPER with this command line behind it: a debugger, a profiler, a script that
// preloads something into one rank (it sees --rank). The wrapper dies with our parent, as exec keeps
// that, and what it starts dies with it; descriptors stay open. --parent is left out, since what the
// wrapper starts may be its child.
static int become_wrapper(const char *wrapper, int argc, char **argv)
{
    char *words = strdup(wrapper), *save = NULL;
    char **line = calloc(strlen(wrapper) + (size_t)argc + 1, sizeof *line);
    int n = 0;
    PRE(words != NULL && line != NULL);
    for (char *w = strtok_r(words, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
        line[n++] = w;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--parent"))
            i++;
        else
            line[n++] = argv[i];
    }
    unsetenv("WEFT_RANK_WRAPPER");
    execvp(line[0], line);
    log_error("rank", "cannot start WEFT_RANK_WRAPPER '%s': %s", wrapper, strerror(errno));
    free(line);
    free(words);
    return RANK_EXIT_CONFIG;
}

static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

// Ranks learn the kind of their devices by a flag, since they have not read the job yet.
static int spawn_ranks(const struct solo_options *o, const struct job *job, int argc, char **argv,
                       int *code, struct err *e)
{
    static char kind_flag[] = "--kind";
    char kind[16], **all = calloc((size_t)argc + 3, sizeof *all);
    PRE(all != NULL);
    memcpy(all, argv, sizeof *all * (size_t)argc);
    snprintf(kind, sizeof kind, "%s", job_device_kind(job->resources.kind));
    all[argc] = kind_flag;
    all[argc + 1] = kind;
    int rc = spawn_run(all, argc + 2, o->dir, (int)job->resources.devices, code, e);
    free(all);
    return rc;
}

// Adds everything that the compiler refuses, so that no rank is started only to say it again. A bug
// of the compiler is left to the ranks, which log it.
static int check_plan(const struct solo_options *o, const struct job *job, struct arena *a,
                      struct buf *violations, struct err *e)
{
    struct compiled compiled;
    struct findings found = {0};
    int rc =
        plan_explain(job, &(struct compile_options){.hasty = true}, a, &compiled, &found, NULL, e);
    if (rc != ERR_INVALID)
        return 0;
    report_errors(o->job_file, &found, e, violations);
    return rc;
}

static int run_all(const struct solo_options *o, int argc, char **argv)
{
    struct arena a;
    struct job job;
    struct err e = {0};
    const char *text;
    char hash[65];
    int code = 0;
    arena_init(&a);
    struct buf violations = {0};
    int rc = solo_job(o, &a, &job, &text, hash, &violations, &e);
    rc = rc ? rc : check_plan(o, &job, &a, &violations, &e);
    if (violations.len)
        plain_puts(stderr, violations.data);
    if (!rc)
        rc = spawn_ranks(o, &job, argc, argv, &code, &e);
    arena_clear(&a);
    if (rc && !violations.len)
        log_error("solo", "%s", e.text);
    buf_clear(&violations);
    return rc ? rank_exit_code(rc) : code;
}

// ---- the other modes ----

static int run_served(const struct rank_flags *f)
{
    struct process *p = calloc(1, sizeof *p);
    struct err e = {0};
    char host[RANK_HOST_MAX];
    int type, code;
    socklen_t size = sizeof type;
    PRE(p != NULL);
    log_context(NULL, f->solo.rank);
    if (getsockopt(f->fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_STREAM) {
        log_error("rank", "--fd: descriptor %d is not a stream socket", f->fd);
        free(p);
        return RANK_EXIT_CONFIG;
    }
    (void)fcntl(f->fd, F_SETFD, FD_CLOEXEC);
    struct warm *warm = start_warm_up(f);
    solo_host(&f->solo, host, sizeof host);
    process_init(p);
    struct process_options o = {.fd = f->fd, .agent = true, .host = host, .dir = f->dir};
    code = process_train(p, &o, &e);
    process_clear(p);
    free(p);
    warm_join(warm);
    return code;
}

static int run_probe(const struct rank_flags *f)
{
    struct buf line = {0};
    struct err e = {0};
    int rc = probe_devices(f->kind, f->devices, &line, &e);
    if (rc)
        plain_error("weft-rank: %s", e.text);
    else
        plain_puts(stdout, buf_str(&line));
    buf_clear(&line);
    return rc ? RANK_EXIT_DEVICE : 0;
}

int main(int argc, char **argv)
{
    static struct rank_flags f = {.solo = {.rank = -1}, .fd = -1};
    struct err e = {0};
    (void)signal(SIGPIPE, SIG_IGN); // a reader of this output may leave; training goes on
    if (flag_asks_help(argc, argv)) {
        plain_puts(stdout, usage);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        plain_puts(stdout, "weft-rank " WEFT_VERSION "\n");
        return 0;
    }
    if (parse_flags(argc, argv, &f, &e)) {
        plain_error("weft-rank: %s", e.text);
        plain_error("  to do: see weft-rank --help");
        return RANK_EXIT_CONFIG;
    }
    if (f.solo.parent || f.fd >= 0)
        tie_to_parent(f.solo.parent);
    if (f.probe)
        return run_probe(&f);
    const char *wrapper = getenv("WEFT_RANK_WRAPPER");
    if (f.fd >= 0 && wrapper && strspn(wrapper, " \t") < strlen(wrapper))
        return become_wrapper(wrapper, argc, argv);
    if (f.fd < 0 && f.solo.rank < 0)
        return run_all(&f.solo, argc, argv);
    block_signals();
    return f.fd >= 0 ? run_served(&f) : run_rank(&f);
}
