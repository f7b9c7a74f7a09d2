// SPDX-License-Identifier: Apache-2.0
// One rank from its link to its exit code. See process.h.
#include "worker/rank/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/ckpt/store.h"
#include "common/plan/schema_list.h"
#include "worker/rank/link/rank_link.h"
#include "worker/rank/train/train.h"

enum {
    ASSIGN_S = 90,   // from Hello to the assignment
    LAST_WORD_S = 3, // how long a failed rank waits to learn which rank was lost
};

void process_init(struct process *p)
{
    *p = (struct process){.socket_fd = -1};
}

// Unix socket addresses hold 107 characters: a long folder is reached through its descriptor.
static int choose_socket_dir(struct process *p, const char *dir, struct err *e)
{
    enum { LONG = 70 };
    snprintf(p->socket_dir, sizeof p->socket_dir, "%s", dir);
    if (strlen(p->socket_dir) > LONG) {
        p->socket_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (p->socket_fd < 0)
            return err_errno(e, ERR_IO, "cannot open %s", dir);
        snprintf(p->socket_dir, sizeof p->socket_dir, "/proc/self/fd/%d", p->socket_fd);
    }
    p->assignment.socket_dir = p->socket_dir;
    return 0;
}

static int make_page(struct process *p, const char *dir, struct err *e)
{
    char path[4200];
    page_path(dir, p->assignment.rank, path, sizeof path);
    return page_create(path, p->assignment.rank, &p->assignment.page, e);
}

static int parse_job(struct process *p, struct err *e)
{
    struct assignment *a = &p->assignment;
    struct job_errors errs = {0};
    const char *base = *a->base_dir ? a->base_dir : "."; // empty: from the roots, or from here
    if (job_parse(&a->arena, &weft_schema, NULL, base, a->job_text, strlen(a->job_text), NULL, 0,
                  &p->job, &errs))
        return job_errors_err(&errs, e);
    a->job = &p->job;
    if (a->threads)
        p->job.resources.threads = a->threads;
    if (!p->job.metrics.jsonl)
        a->metrics = NULL;
    return 0;
}

// A rank whose attempt is over has been replaced: it must not even begin.
static int check_attempt(const struct assignment *a, struct err *e)
{
    struct store store;
    int rc = store_open(&store, a->checkpoint_root, a->store, e);
    if (!rc)
        rc = store_check_attempt(&store, (int64_t)a->attempt, NULL, e);
    store_close(&store);
    return rc;
}

// Waits for Assign and completes it with what this process adds.
static int complete_assignment(struct process *p, const struct process_options *o, struct err *e)
{
    struct assignment *a = &p->assignment;
    int rc = link_assign(p->link, a, clock_mono_ns() + ASSIGN_S * CLOCK_S, e);
    if (rc)
        return rc;
    log_context(a->job_id, a->rank);
    a->host = o->host;
    rc = parse_job(p, e);
    rc = rc ? rc : choose_socket_dir(p, o->dir, e);
    rc = rc ? rc : make_page(p, o->dir, e);
    return rc || a->only ? rc : check_attempt(a, e);
}

// Whether this rank ended because it was asked to stop. Before the first step ranks that stop do not
// wait for each other, so a rank that waits for another one then, or has lost it, has not failed.
static bool was_stopped(const struct process *p, int rc, const struct page_view *at)
{
    bool gave_up = rc == ERR_ABORTED && !link_lost(p->link);
    bool waited = rc == ERR_ABORTED || rc == ERR_PEER || rc == ERR_TIMEOUT;
    return link_stop_requested(p->link) && (gave_up || (waited && at->state < RANK_RUNNING));
}

// That the host lacks something (disk, memory) decides only where nothing better is known: a rank that
// waited for a peer in vain is not the machine's fault.
static int find_exit_code(int rc, const struct err *e)
{
    int code = rank_exit_code(rc);
    return code == RANK_EXIT_INTERNAL && e->of_host ? RANK_EXIT_HOST : code;
}

// The exit code of what happened. If a peer was lost, `e` gets the leader's message, which names it.
static int choose_exit_code(struct process *p, int rc, enum train_end end, struct err *e)
{
    const struct progress_page *page = p->assignment.page;
    struct page_view at = {0};
    if (!rc)
        return end == TRAIN_DRAINED ? RANK_EXIT_DRAINED : RANK_EXIT_DONE;
    if (page)
        page_read(page, &at);
    int code = find_exit_code(rc, e);
    if (was_stopped(p, rc, &at))
        return RANK_EXIT_DRAINED;
    bool fenced = rc == ERR_FENCED; // its message has the cause already
    const char *why =
        code == RANK_EXIT_LOST && !fenced ? link_lost_wait(p->link, LAST_WORD_S * CLOCK_S) : NULL;
    if (why && was_stopped(p, rc, &at)) // the peer had been asked before us
        return RANK_EXIT_DRAINED;
    if (why &&
        strstr(e->text, " gave up: ")) { // a peer has only repeated the leader's text, cut short
        err_set(e, rc, "lost a peer: %.960s", why);
    } else if (why && !strstr(e->text, why)) {
        char seen[sizeof e->text];
        snprintf(seen, sizeof seen, "%s", e->text);
        err_set(e, rc, "lost a peer: %.480s; here: %.480s", why, seen);
    }
    return code;
}

int process_train(struct process *p, const struct process_options *o, struct err *e)
{
    enum train_end end = TRAIN_FINISHED;
    int rc = link_open(o->fd, &p->link, e);
    if (rc) {
        log_error("rank", "%s", e->text);
        return find_exit_code(rc, e);
    }
    rc = complete_assignment(p, o, e);
    if (!rc)
        rc = train_run(&p->assignment, p->link, &end, e);
    int code = choose_exit_code(p, rc, end, e);
    if (p->assignment.page)
        page_state(p->assignment.page, RANK_ENDED);
    if (rc && code != RANK_EXIT_DRAINED)
        log_error("rank", "%s", e->text);
    link_close(p->link, code, rc ? e->text : "");
    p->link = NULL;
    return code;
}

void process_clear(struct process *p)
{
    page_close(p->assignment.page);
    system_close(&p->socket_fd);
    arena_clear(&p->assignment.arena);
}
