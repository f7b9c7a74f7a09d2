// SPDX-License-Identifier: Apache-2.0
// weft-rank: one rank of a training job, or with --solo and no --rank the parent of all of them.
//
// Errors travel up as values and are logged here, once; the exit code comes from rank_exit_code().
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/model/schema_list.h"
#include "worker/rank/lead.h"
#include "worker/rank/link.h"
#include "worker/rank/solo.h"
#include "worker/rank/spawn.h"
#include "worker/rank/status.h"
#include "worker/rank/train.h"
#include "worker/rank/warm.h"

enum {
    OVERRIDES_MAX = 200,
    JOIN_S = 60,       // all ranks find each other
    STILL_S = 600,     // a page stands still while starting or saving
    SILENCE_MIN_S = 2, // a leader that says nothing: this, or what a hang takes to be named
    LAST_WORD_S = 3,   // what a failed rank waits to learn who was lost
    END_WAIT_S = 60,   // rank 0 waits for the others' end after its own good one
};

static const char usage[] =
    "usage: weft-rank --solo DIR --job FILE [-s key=value]... [--of N] [--rank R]\n"
    "                 [--host NAME] [--listen HOST:PORT] [--new]\n"
    "\n"
    "Trains the job over N ranks, with DIR as the place of state, logs and metrics. Without "
    "--rank\n"
    "all ranks run here. Run the same command again to continue after any ending.\n"
    "\n"
    "  -s key=value      overrides a value of the job file\n"
    "  --of N            the number of ranks; default: what the job's mesh says\n"
    "  --rank R          runs this rank alone; the caller starts the others\n"
    "  --host NAME       ranks with the same NAME share memory; default: this machine\n"
    "  --listen H:PORT   this rank's address for ranks of other hosts; PORT may be 0\n"
    "  --new             DIR may belong to another job: its state is moved aside\n";

// ---- flags ----

static int number(const char *text, int min, int max, int *out, struct err *e)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || !*text || *end || n < min || n > max)
        return err_set(e, ERR_INVALID, "'%s' is not a number from %d to %d", text, min, max);
    *out = (int)n;
    return 0;
}

static int parse(int argc, char **argv, struct solo_options *o, const char **overrides,
                 struct err *e)
{
    enum { SOLO = 256, JOB, OF, RANK, HOST, LISTEN, NEW, PARENT };
    static const struct option flags[] = {
        {"solo", required_argument, NULL, SOLO},
        {"job", required_argument, NULL, JOB},
        {"of", required_argument, NULL, OF},
        {"rank", required_argument, NULL, RANK},
        {"host", required_argument, NULL, HOST},
        {"listen", required_argument, NULL, LISTEN},
        {"new", no_argument, NULL, NEW},
        {"parent", required_argument, NULL, PARENT},
        {NULL, 0, NULL, 0},
    };
    int f, rc = 0;
    opterr = 0;
    while (!rc && (f = getopt_long(argc, argv, "s:", flags, NULL)) != -1) {
        switch (f) {
        case SOLO:
            o->dir = optarg;
            break;
        case JOB:
            o->job_file = optarg;
            break;
        case 's':
            if (o->noverrides == OVERRIDES_MAX)
                return err_set(e, ERR_LIMIT, "over %d overrides", OVERRIDES_MAX);
            overrides[o->noverrides++] = optarg;
            break;
        case OF:
            rc = number(optarg, 1, RANK_MAX, &o->of, e);
            break;
        case RANK:
            rc = number(optarg, 0, RANK_MAX - 1, &o->rank, e);
            break;
        case HOST:
            o->host = optarg;
            break;
        case LISTEN:
            o->listen = optarg;
            break;
        case NEW:
            o->fresh = true;
            break;
        case PARENT:
            rc = number(optarg, 1, INT32_MAX, &o->parent, e);
            break;
        default:
            return err_set(e, ERR_INVALID, "unknown flag, or a flag without its value: %s",
                           argv[optind - 1]);
        }
    }
    if (!rc && optind < argc)
        rc = err_set(e, ERR_INVALID, "unexpected argument '%s'", argv[optind]);
    if (!rc && (!o->dir || !o->job_file))
        rc = err_set(e, ERR_INVALID, "--solo DIR and --job FILE are needed");
    if (!rc && o->host && (!*o->host || strlen(o->host) >= RANK_HOST_MAX))
        rc = err_set(e, ERR_INVALID, "--host is a name of 1 to %d characters", RANK_HOST_MAX - 1);
    o->overrides = overrides;
    return rc;
}

// ---- one rank ----

struct process { // what one rank's process holds, freed at its end
    struct solo solo;
    struct attempt attempt; // what this rank trains by
    struct attempt plan;    // rank 0: what it assigns
    struct job job;
    struct lead *lead;
    struct link *link;
    struct status status;
    bool leads, shown;
    char socket_dir[4100], metrics[4100], listen[300];
    int socket_fd;
};

static void on_row(void *ctx, const struct step_row *row)
{
    status_row(ctx, row);
}

static void on_saved(void *ctx, int64_t step)
{
    status_saved(ctx, step);
}

// Rank 0 takes DIR and starts to lead; *fd is its own link's end, −1 when the job is finished.
static int lead_solo(struct process *p, const struct solo_options *o, int *fd, struct err *e)
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
    struct lead_config c = {
        .attempt = &p->plan,
        .unix_fd = p->solo.unix_fd,
        .tcp_fd = p->solo.tcp_fd,
        .page_dir = p->solo.epoch_dir,
        .commit = {.nranks = p->plan.ranks,
                   .deadline_ns = STILL_S * CLOCK_S,
                   .keep = (int)ck->keep,
                   .keep_every = ck->keep_every},
        .scan = p->solo.scan,
        .nscan = p->solo.nscan,
        .join_ns = JOIN_S * CLOCK_S,
        .start_ns = STILL_S * CLOCK_S,
        .save_ns = STILL_S * CLOCK_S,
        .on_row = on_row,
        .on_saved = on_saved,
        .ctx = &p->status,
    };
    if ((rc = lead_start(&c, &p->lead, fd, e)))
        return rc;
    return solo_publish(&p->solo, &p->plan, e);
}

// The address for other hosts' collectives: --listen's host, any port.
static void own_listen(struct process *p, const struct solo_options *o)
{
    const char *colon = o->listen ? strrchr(o->listen, ':') : NULL;
    if (!colon)
        return;
    snprintf(p->listen, sizeof p->listen, "%.*s:0", (int)(colon - o->listen), o->listen);
    p->attempt.listen = p->listen;
}

// Unix socket addresses hold 107 characters: a long folder is reached through its descriptor.
static int own_socket_dir(struct process *p, struct err *e)
{
    enum { LONG = 70 };
    snprintf(p->socket_dir, sizeof p->socket_dir, "%s", p->solo.epoch_dir);
    if (strlen(p->socket_dir) > LONG) {
        p->socket_fd = open(p->solo.epoch_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (p->socket_fd < 0)
            return err_errno(e, ERR_IO, "cannot open %s", p->solo.epoch_dir);
        snprintf(p->socket_dir, sizeof p->socket_dir, "/proc/self/fd/%d", p->socket_fd);
    }
    p->attempt.socket_dir = p->socket_dir;
    return 0;
}

// From Assign to a complete attempt.
static int prepare(struct process *p, const struct solo_options *o, struct err *e)
{
    struct attempt *a = &p->attempt;
    struct job_errors errs = {0};
    char path[4200];
    int rc = link_assign(p->link, a, clock_mono_ns() + JOIN_S * CLOCK_S, e);
    if (rc)
        return rc;
    log_context(a->job_id, a->rank);
    int64_t silence_ns = a->hang_after_ns + CLOCK_S;
    bool hurry = silence_ns < SILENCE_MIN_S * CLOCK_S;
    link_set_silence(p->link, hurry ? SILENCE_MIN_S * CLOCK_S : silence_ns);
    if (job_parse(&a->arena, &weft_schema, "the resolved job", a->base_dir, a->job_text,
                  strlen(a->job_text), NULL, 0, &p->job, &errs))
        return job_errors_err(&errs, e);
    a->job = &p->job;
    a->host = p->solo.host;
    own_listen(p, o);
    lead_page_path(p->solo.epoch_dir, a->rank, path, sizeof path);
    if ((rc = own_socket_dir(p, e)) || (rc = page_create(path, a->rank, &a->page, e)))
        return rc;
    link_set_page(p->link, a->page);
    if (a->rank == 0 && p->job.metrics.jsonl) {
        snprintf(p->metrics, sizeof p->metrics, "%s/metrics.jsonl", p->solo.dir);
        a->metrics = p->metrics;
    }
    return 0;
}

// The exit code of what happened; a lost peer's message becomes the leader's, which names it.
static int judge(struct process *p, int rc, enum train_end end, struct err *e)
{
    const struct progress_page *page = p->attempt.page;
    struct page_view at = {0};
    if (!rc)
        return end == TRAIN_DRAINED ? RANK_EXIT_DRAINED : RANK_EXIT_DONE;
    if (page)
        page_read(page, &at);
    int code = rank_exit_code(rc);
    bool gave_up = rc == ERR_ABORTED && !link_lost(p->link);
    bool waited = rc == ERR_ABORTED || rc == ERR_PEER || rc == ERR_TIMEOUT;
    if (link_stop_requested(p->link) && (gave_up || (waited && at.state < RANK_RUNNING)))
        return RANK_EXIT_DRAINED;
    const char *why =
        code == RANK_EXIT_LOST ? link_lost_wait(p->link, LAST_WORD_S * CLOCK_S) : NULL;
    if (why && !strstr(e->text, why)) {
        char seen[sizeof e->text];
        snprintf(seen, sizeof seen, "%s", e->text);
        err_set(e, rc, "lost a peer: %.480s; here: %.480s", why, seen);
    }
    return code;
}

static int train(struct process *p, const struct solo_options *o, int fd, struct err *e)
{
    enum train_end end = TRAIN_FINISHED;
    char leader[4200];
    lead_page_path(p->solo.epoch_dir, 0, leader, sizeof leader);
    struct link_options lo = {.fd = fd, .host = p->solo.host, .leader_page = leader};
    int rc = link_open(&lo, &p->link, e);
    if (rc)
        return rank_exit_code(rc);
    rc = prepare(p, o, e);
    if (!rc)
        rc = train_run(&p->attempt, p->link, &end, e);
    int code = judge(p, rc, end, e);
    if (p->attempt.page)
        page_state(p->attempt.page, RANK_ENDED);
    if (rc && code != RANK_EXIT_DRAINED)
        log_error("rank", "%s", e->text);
    link_set_page(p->link, NULL);
    link_close(p->link, code, rc ? e->text : "");
    bool good = code == RANK_EXIT_DONE || code == RANK_EXIT_DRAINED;
    lead_stop(p->lead, good ? END_WAIT_S * CLOCK_S : LAST_WORD_S * 2 * CLOCK_S);
    return code;
}

static void clear(struct process *p)
{
    page_close(p->attempt.page);
    if (p->socket_fd >= 0)
        close(p->socket_fd);
    if (p->leads)
        solo_close(&p->solo);
    arena_clear(&p->attempt.arena);
    arena_clear(&p->plan.arena);
}

static void say_finished(const struct process *p)
{
    printf("the job is finished: step %lld is saved in %s/%s\n", (long long)p->plan.restore_step,
           p->plan.store, p->plan.restore);
    printf("metrics     %s/metrics.jsonl\nuse --new to train it again\n", p->solo.dir);
    fflush(stdout);
}

static int run_rank(const struct solo_options *o)
{
    struct process *p = calloc(1, sizeof *p);
    struct err e = {0};
    bool finished = false;
    int fd = -1, code, rc;
    PRE(p != NULL);
    struct warm *warm = warm_start("cpu");
    p->socket_fd = p->solo.lock_fd = -1;
    p->leads = o->rank == 0;
    log_context(NULL, o->rank);
    if (p->leads)
        rc = lead_solo(p, o, &fd, &e);
    else
        rc = solo_find(o, &p->solo, clock_mono_ns() + JOIN_S * CLOCK_S, &fd, &finished, &e);
    if (rc) {
        code = rc == ERR_ABORTED ? RANK_EXIT_DRAINED : rank_exit_code(rc);
        log_error("rank", "%s", e.text);
        lead_stop(p->lead, 0);
    } else if (fd < 0) {
        code = RANK_EXIT_DONE;
        if (p->leads)
            say_finished(p);
    } else {
        code = train(p, o, fd, &e);
    }
    if (p->shown)
        status_finish(&p->status, code, p->solo.dir, p->plan.store);
    clear(p);
    free(p);
    warm_join(warm);
    return code;
}

// Dies with its parent, and at once if that is gone already.
static void tie_to_parent(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(RANK_EXIT_LOST);
}

static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
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
    if (violations.len)
        fputs(violations.data, stderr);
    if (!rc)
        rc = spawn_run(argv, argc, o->dir, (int)job.resources.devices, &code, &e);
    arena_clear(&a);
    if (rc && !violations.len)
        log_error("solo", "%s", e.text);
    buf_clear(&violations);
    return rc ? rank_exit_code(rc) : code;
}

int main(int argc, char **argv)
{
    struct solo_options o = {.rank = -1};
    const char *overrides[OVERRIDES_MAX];
    struct err e = {0};
    (void)signal(SIGPIPE, SIG_IGN); // who reads our output may leave; training goes on
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        fputs(usage, stdout);
        return 0;
    }
    if (parse(argc, argv, &o, overrides, &e)) {
        fprintf(stderr, "weft-rank: %s\n%s", e.text, usage);
        return RANK_EXIT_CONFIG;
    }
    if (o.parent)
        tie_to_parent(o.parent);
    if (o.rank < 0)
        return run_all(&o, argc, argv);
    block_signals();
    return run_rank(&o);
}
