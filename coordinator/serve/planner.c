// SPDX-License-Identifier: Apache-2.0
// The line of jobs that are to be planned, and the processes that plan them; see planner.h.
#include "coordinator/serve/planner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/system.h"
#include "coordinator/serve/planner_process.h"

struct plan_request {
    struct list link;
    struct planned job;
    int at; // its text at hand
};
struct planner_slot { // of a process
    struct planner_process process;
    struct plan_request *request; // at hand; null: none
    int64_t due_ns;               // when its time is over
};
struct planner {
    struct planner_options o;
    char *program;
    struct list waiting, done;
    struct planner_slot slots[PLANNER_PROCESSES];
    int epoll, timer;
};

static int start_process(struct planner *p, struct planner_slot *s, struct err *e)
{
    if (s->process.pid)
        return 0;
    int rc = planner_process_start(&s->process, p->program, p->o.memory, e);
    struct epoll_event ev = {.events = EPOLLIN};
    if (!rc && epoll_ctl(p->epoll, EPOLL_CTL_ADD, s->process.socket, &ev))
        rc = err_errno(e, ERR_INTERNAL, "cannot wait for a plan");
    return rc; // closing the socket takes it out
}

int planner_open(const struct planner_options *o, struct planner **out, struct err *e)
{
    struct planner *p = heap_alloc(sizeof *p);
    p->o = *o;
    p->program = heap_strdup(o->program);
    p->o.time_ns = o->time_ns ? o->time_ns : PLANNER_TIME_S * CLOCK_S;
    p->o.memory = o->memory ? o->memory : (int64_t)PLANNER_MEMORY_MIB << 20;
    list_init(&p->waiting);
    list_init(&p->done);
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN};
    if (p->epoll < 0 || p->timer < 0 || epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->timer, &ev)) {
        int rc = err_errno(e, ERR_INTERNAL, "cannot wait for plans");
        planner_close(p);
        return rc;
    }
    (void)start_process(p, &p->slots[0], NULL); // it loads while the first job is on its way
    *out = p;
    return 0;
}

int planned_texts(const struct planned *job)
{
    return job->submit ? 1 : job->found ? (int)job->found->storage->n_found : 0;
}

void planned_clear(struct planned *job)
{
    for (int i = 0; job->facts && i < planned_texts(job); i++)
        weft__plan__job_facts__free_unpacked(job->facts[i], NULL);
    free(job->facts);
    free(job->before);
    weft__v1__submit_request__free_unpacked(job->submit, NULL);
    weft__v1__up__free_unpacked(job->found, NULL);
    *job = (struct planned){0};
}

static void free_request(struct plan_request *o)
{
    planned_clear(&o->job);
    free(o);
}

static void drop_all(struct list *requests)
{
    list_for_each (it, requests)
        free_request(list_entry(it, struct plan_request, link));
}

void planner_close(struct planner *p)
{
    if (!p)
        return;
    for (int i = 0; i < PLANNER_PROCESSES; i++) {
        planner_process_kill(&p->slots[i].process);
        if (p->slots[i].request)
            free_request(p->slots[i].request);
    }
    drop_all(&p->waiting);
    drop_all(&p->done);
    system_close(&p->epoll);
    system_close(&p->timer);
    free(p->program);
    free(p);
}

int planner_fd(const struct planner *p)
{
    return p->epoll;
}

// ---- the line ----

static bool is_same_user(const struct planned *a, const struct planned *b)
{
    return strcmp(a->who, b->who) == 0 && strcmp(a->role, b->role) == 0;
}

static bool is_same_request(const struct planned *a, const struct planned *b)
{
    return a->submit && b->submit && is_same_user(a, b) && *a->submit->request_id &&
           strcmp(a->submit->request_id, b->submit->request_id) == 0 &&
           strcmp(a->submit->base_dir, b->submit->base_dir) == 0 &&
           strcmp(a->submit->continues, b->submit->continues) == 0 &&
           strcmp(a->submit->resolved, b->submit->resolved) == 0;
}

// The request that was made already and is the same; null: none.
static struct plan_request *find_request(struct planner *p, const struct planned *job)
{
    for (int i = 0; i < PLANNER_PROCESSES; i++)
        if (p->slots[i].request && is_same_request(&p->slots[i].request->job, job))
            return p->slots[i].request;
    list_for_each (it, &p->waiting)
        if (is_same_request(&list_entry(it, struct plan_request, link)->job, job))
            return list_entry(it, struct plan_request, link);
    return NULL;
}

// Counts what waits or is planned, of this user or, with null, of all.
static int count_requests(struct planner *p, const struct planned *user)
{
    int n = 0;
    for (int i = 0; i < PLANNER_PROCESSES; i++)
        n += p->slots[i].request && (!user || is_same_user(&p->slots[i].request->job, user));
    list_for_each (it, &p->waiting)
        n += !user || is_same_user(&list_entry(it, struct plan_request, link)->job, user);
    return n;
}

static int check_room(struct planner *p, const struct planned *job, const struct plan_request *same,
                      struct err *e)
{
    if (same && same->job.ncalls == PLANNER_CALLS_MAX)
        return err_set(e, ERR_LIMIT, "this request was made %d times and is being planned",
                       PLANNER_CALLS_MAX);
    if (!same && count_requests(p, job) >= PLANNER_USER_MAX)
        return err_set(e, ERR_LIMIT, "%d jobs of %s wait to be planned: no more at a time",
                       PLANNER_USER_MAX, job->who);
    if (!same && count_requests(p, NULL) >= PLANNER_MAX)
        return err_set(e, ERR_LIMIT, "too many jobs wait to be planned");
    return 0;
}

int planner_put(struct planner *p, struct planned *job, struct err *e)
{
    struct plan_request *o = find_request(p, job);
    int rc = job->submit ? check_room(p, job, o, e) : 0;
    if (!rc && o)
        o->job.calls[o->job.ncalls++] = job->calls[0];
    if (rc || o) {
        planned_clear(job);
        return rc;
    }
    o = heap_alloc(sizeof *o);
    o->job = *job;
    o->job.facts = heap_alloc(sizeof *o->job.facts * (size_t)(planned_texts(job) + 1));
    *job = (struct planned){0};
    list_append(planned_texts(&o->job) ? &p->waiting : &p->done, &o->link);
    return 0;
}

bool planned_forget_call(struct planned *job, uint64_t call)
{
    for (int i = 0; i < job->ncalls; i++)
        if (job->calls[i] == call) {
            job->calls[i] = job->calls[--job->ncalls];
            return true;
        }
    return false;
}

void planner_cancel(struct planner *p, uint64_t call)
{
    for (int i = 0; i < PLANNER_PROCESSES; i++) {
        struct planner_slot *s = &p->slots[i];
        if (!s->request || !planned_forget_call(&s->request->job, call) || s->request->job.ncalls)
            continue;
        planner_process_kill(&s->process);
        free_request(s->request);
        s->request = NULL;
    }
    list_for_each (it, &p->waiting) {
        struct plan_request *o = list_entry(it, struct plan_request, link);
        if (!planned_forget_call(&o->job, call) || o->job.ncalls)
            continue;
        list_remove(&o->link);
        free_request(o);
    }
}

// ---- the processes ----

static void make_text(const struct planned *job, int at, Weft__Plan__JobText *out)
{
    weft__plan__job_text__init(out);
    if (job->submit) {
        out->text = job->submit->resolved;
        out->base_dir = job->submit->base_dir;
        out->plan = true;
        if (job->before)
            out->before = job->before;
        out->threads_before = job->threads_before;
    } else {
        const Weft__V1__FoundJob *f = job->found->storage->found[at];
        out->text = f->resolved;
        out->before = f->saved;
        out->threads_before = f->threads;
    }
}

// How long one of its texts may take.
static int64_t limit_ns(const struct planner *p, const struct plan_request *o)
{
    const int64_t read = PLANNER_READ_S * CLOCK_S;
    return o->job.submit || p->o.time_ns < read ? p->o.time_ns : read;
}

// Gives the process the request's texts from the one at hand on, until one is under way.
static void give_texts(struct planner *p, struct planner_slot *s, int64_t now)
{
    struct plan_request *o = s->request;
    for (; o->at < planned_texts(&o->job); o->at++) {
        struct err e = {0};
        Weft__Plan__JobText text;
        make_text(&o->job, o->at, &text);
        s->due_ns = now + limit_ns(p, o);
        if (!start_process(p, s, &e) && !planner_process_give(&s->process, &text, &e))
            return;
        planner_process_kill(&s->process);
        o->job.facts[o->at] = planner_process_refuse(e.text);
    }
    const char *refused = o->job.submit ? o->job.facts[0]->refused : "";
    if (*refused)
        err_set(&o->job.refused, ERR_INVALID, "%s", refused);
    list_append(&p->done, &o->link);
    s->request = NULL;
}

static void read_process(struct planner *p, struct planner_slot *s, int64_t now)
{
    struct plan_request *o = s->request;
    Weft__Plan__JobFacts *facts = s->process.pid ? planner_process_hear(&s->process) : NULL;
    if (o && !facts && now >= s->due_ns) {
        struct err e = {0};
        planner_process_kill(&s->process);
        err_set(&e, ERR_INVALID,
                "planning the job took longer than %lld s: `weft plan` shows where it is too large",
                (long long)(limit_ns(p, o) / CLOCK_S));
        facts = planner_process_refuse(e.text);
    }
    if (o && facts) {
        o->job.facts[o->at++] = facts;
        give_texts(p, s, now);
    } else { // what is heard of an idle process is its death, which takes it out of the epoll
        weft__plan__job_facts__free_unpacked(facts, NULL);
    }
}

static bool has_to_wait(const struct planner *p, const struct planned *job)
{
    for (int i = 0; i < PLANNER_PROCESSES; i++) {
        const struct plan_request *other = p->slots[i].request;
        if (other && (is_same_user(&other->job, job) || (other->job.found && job->found)))
            return true;
    }
    return false;
}

// The first in line whose user has no other plan at hand, and of what was found the first if none of
// it is; null: none.
static struct plan_request *find_next(struct planner *p)
{
    list_for_each (it, &p->waiting) {
        struct plan_request *o = list_entry(it, struct plan_request, link);
        if (!has_to_wait(p, &o->job))
            return o;
    }
    return NULL;
}

// The timer rings when the first plan's time is over, which makes planner_fd readable.
static void set_timer(struct planner *p)
{
    int64_t due = 0;
    for (int i = 0; i < PLANNER_PROCESSES; i++)
        if (p->slots[i].request && (!due || p->slots[i].due_ns < due))
            due = p->slots[i].due_ns;
    const struct itimerspec t = {.it_value = {due / CLOCK_S, due % CLOCK_S}};
    timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void advance_plans(struct planner *p)
{
    int64_t now = clock_mono_ns();
    struct plan_request *o;
    for (int i = 0; i < PLANNER_PROCESSES; i++)
        read_process(p, &p->slots[i], now);
    for (int i = 0; i < PLANNER_PROCESSES && (o = find_next(p)); i++)
        if (!p->slots[i].request) {
            list_remove(&o->link);
            p->slots[i].request = o;
            give_texts(p, &p->slots[i], now);
        }
    set_timer(p);
}

bool planner_next(struct planner *p, struct planned *out)
{
    if (list_empty(&p->done))
        advance_plans(p);
    if (list_empty(&p->done))
        return false;
    struct plan_request *o = list_entry(p->done.next, struct plan_request, link);
    list_remove(&o->link);
    *out = o->job;
    free(o);
    return true;
}
