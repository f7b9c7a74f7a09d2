// SPDX-License-Identifier: Apache-2.0
// Two queues under one lock and a thread that takes jobs from one to the other; see planner.h.
#include "coordinator/planner.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/model/model.h"
#include "common/model/schema_list.h"

struct order {
    struct list link;
    struct planned job;
};
struct planner {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct list waiting, done;
    int n; // waiting
    bool closing;
    int fd; // an eventfd
};

// ---- the thread ----

static int check_job(const Weft__V1__SubmitRequest *q, struct arena *a, struct err *e)
{
    struct job_errors errs = {0};
    struct compiled compiled;
    struct job job;
    if (job_parse(a, &weft_schema, NULL, q->base_dir[0] ? q->base_dir : NULL, q->resolved,
                  strlen(q->resolved), NULL, 0, &job, &errs))
        return job_errors_err(&errs, e);
    return model_compile(&job, a, &compiled, NULL, e);
}

static void *run_planner(void *ctx)
{
    struct planner *p = ctx;
    struct arena a;
    const uint64_t one = 1;
    arena_init(&a);
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        if (list_empty(&p->waiting)) {
            pthread_cond_wait(&p->more, &p->lock);
            continue;
        }
        struct order *o = list_entry(p->waiting.next, struct order, link);
        list_remove(&o->link);
        p->n--;
        pthread_mutex_unlock(&p->lock);
        check_job(o->job.submit, &a, &o->job.refused);
        arena_clear(&a);
        pthread_mutex_lock(&p->lock);
        list_append(&p->done, &o->link);
        if (write(p->fd, &one, sizeof one) != sizeof one)
            continue; // it is readable already
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

// ---- the owner ----

int planner_open(struct planner **out, struct err *e)
{
    sigset_t all, old;
    struct planner *p = calloc(1, sizeof *p);
    PRE(p != NULL);
    *out = NULL;
    list_init(&p->waiting);
    list_init(&p->done);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = p->fd < 0 ? -1 : pthread_create(&p->thread, NULL, run_planner, p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        free(p);
        return err_set(e, ERR_INTERNAL, "cannot start the planner's thread");
    }
    *out = p;
    return 0;
}

static void drop_all(struct list *orders)
{
    list_for_each (it, orders) {
        struct order *o = list_entry(it, struct order, link);
        weft__v1__submit_request__free_unpacked(o->job.submit, NULL);
        free(o);
    }
}

void planner_close(struct planner *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    drop_all(&p->waiting);
    drop_all(&p->done);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->more);
    close(p->fd);
    free(p);
}

int planner_fd(const struct planner *p)
{
    return p->fd;
}

int planner_put(struct planner *p, const struct planned *job)
{
    struct order *o = calloc(1, sizeof *o);
    PRE(o != NULL);
    o->job = *job;
    pthread_mutex_lock(&p->lock);
    bool full = p->n >= PLANNER_MAX;
    if (!full) {
        list_append(&p->waiting, &o->link);
        p->n++;
        pthread_cond_signal(&p->more);
    }
    pthread_mutex_unlock(&p->lock);
    if (!full)
        return 0;
    weft__v1__submit_request__free_unpacked(o->job.submit, NULL);
    free(o);
    return ERR_LIMIT;
}

bool planner_next(struct planner *p, struct planned *out)
{
    uint64_t rings;
    struct order *o = NULL;
    pthread_mutex_lock(&p->lock);
    if (!list_empty(&p->done)) {
        o = list_entry(p->done.next, struct order, link);
        list_remove(&o->link);
    } else if (read(p->fd, &rings, sizeof rings) < 0) {
        rings = 0; // nothing to take back
    }
    pthread_mutex_unlock(&p->lock);
    if (!o)
        return false;
    *out = o->job;
    free(o);
    return true;
}
