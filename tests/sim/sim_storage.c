// SPDX-License-Identifier: Apache-2.0
// A worker's durable acts in a job's checkpoint folder, on a fiber of its process: the probe of the
// storage and the fence, with the real store.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "tests/sim/sim_check.h"

struct act {
    struct host *host;
    Weft__V1__Storage *op;
    Weft__V1__StorageDone done;
    struct arena *arena;
    char path[300];
};

static int write_nonce(struct act *x, struct store *s, struct err *e)
{
    char dir[100];
    snprintf(dir, sizeof dir, ".probe-%s", x->op->attempt_id);
    if (mkdirat(s->fd, dir, 0755) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", dir);
    int fd = openat(s->fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot open %s", dir);
    int file = openat(fd, x->host->id, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    size_t n = strlen(x->op->nonce);
    int rc = file < 0 || pwrite(file, x->op->nonce, n, 0) != (ssize_t)n
                 ? err_errno(e, ERR_IO, "cannot write the nonce")
                 : 0;
    if (file >= 0)
        close(file);
    close(fd);
    return rc;
}

static int rename_probe(struct act *x, struct store *s, struct err *e)
{
    char from[100], to[100];
    snprintf(from, sizeof from, ".probe-%s", x->op->attempt_id);
    snprintf(to, sizeof to, ".probed-%s", x->op->attempt_id);
    if (renameat(s->fd, from, s->fd, to) && (errno != ENOENT || faccessat(s->fd, to, F_OK, 0)))
        return err_errno(e, ERR_IO, "cannot rename %s", from);
    return 0;
}

static int read_one(const struct act *x, struct store *s, const char *host_nonce, struct err *e)
{
    char dir[100], want[100] = "", got[100] = "";
    const char *eq = strchr(host_nonce, '=');
    snprintf(dir, sizeof dir, ".probed-%s", x->op->attempt_id);
    int fd = openat(s->fd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), file = -1;
    snprintf(want, sizeof want, "%.*s", eq ? (int)(eq - host_nonce) : 0, host_nonce);
    if (fd >= 0)
        file = openat(fd, want, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? -1 : read(file, got, sizeof got - 1);
    if (file >= 0)
        close(file);
    if (fd >= 0)
        close(fd);
    return n < 0 || !eq || strcmp(got, eq + 1) != 0
               ? err_set(e, ERR_IO, "host %s does not see the nonce of %s", x->host->name, want)
               : 0;
}

static int read_nonces(struct act *x, struct store *s, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < x->op->n_nonces && !rc; i++)
        rc = read_one(x, s, x->op->nonces[i], e);
    return rc;
}

static void list_one(struct act *x, struct store_entry id)
{
    Weft__V1__Checkpoint *c = arena_new(x->arena, Weft__V1__Checkpoint);
    weft__v1__checkpoint__init(c);
    c->job = x->op->job;
    c->attempt = (uint64_t)id.attempt;
    c->step = id.step;
    c->bad = !check_whole(x->path, x->op->job, id);
    c->evaluated = x->op->losses && !c->bad;
    c->eval_loss = c->evaluated ? sim_eval_loss(id.step) : 0;
    x->done.committed[x->done.n_committed++] = c;
}

static int fence(struct act *x, struct store *s, struct err *e)
{
    int64_t greatest = 0;
    struct store_entry *v = NULL;
    int n = 0;
    int rc = store_fence(s, (int64_t)x->op->attempt, x->op->attempt_id, &greatest, e);
    x->done.greatest = rc == ERR_FENCED ? (uint64_t)greatest : 0;
    rc = rc ? rc : store_scan(s, x->arena, &v, &n, e);
    if (rc)
        return rc;
    x->done.committed = arena_array(x->arena, Weft__V1__Checkpoint *, n + 1);
    for (int i = 0; i < n; i++)
        list_one(x, v[i]);
    return 0;
}

static void answers(void *arg, uint64_t tag)
{
    struct act *x = arg;
    (void)tag;
    TRACE(&x->host->w->sim, x->host->name, "storage %s of %.4s.a%d: %s, %d checkpoints",
          storage_word(x->op->op), x->op->job, (int)x->op->attempt,
          x->done.ok ? "done" : x->done.why, (int)x->done.n_committed);
    if (x->done.ok && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_FENCE)
        check_fenced(x->host->w, x->op->job, x->op->attempt, x->op->attempt_id, x->path);
    host_step(x->host, &(struct agent_event){.kind = AGENT_EV_STORAGE, .storage = &x->done});
}

static void body(void *arg)
{
    struct act *x = arg;
    struct store s = {.fd = -1};
    struct err e = {0};
    struct store_owner owner = {x->host->w->coordinator.cluster, x->op->job, x->op->name,
                                x->op->resolved, x->op->threads};
    int rc = store_make(&s, NULL, x->op->dir, &owner, &e);
    snprintf(x->path, sizeof x->path, "%.250s", s.path);
    x->done.config = rc == ERR_EXISTS;
    if (!rc && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_WRITE)
        rc = write_nonce(x, &s, &e);
    else if (!rc && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_RENAME)
        rc = rename_probe(x, &s, &e);
    else if (!rc && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_READ)
        rc = read_nonces(x, &s, &e);
    else if (!rc)
        rc = fence(x, &s, &e);
    if (!rc && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_TIDY)
        store_sweep(&s, (int64_t)x->op->attempt, INT64_MAX);
    x->done.ok = rc == 0;
    x->done.store = x->path;
    x->done.why = arena_strdup(x->arena, e.text);
    proc_after(fiber_proc(), 1000, answers, x, 0);
    if (!rc && x->op->op == WEFT__V1__STORAGE_OP__STORAGE_FENCE)
        store_sweep(&s, (int64_t)x->op->attempt, 0); // as the worker does: after the answer
    store_close(&s);
}

static char *dup_or_empty(struct arena *a, const char *s)
{
    return arena_strdup(a, s ? s : "");
}

void storage_do(struct host *h, const Weft__V1__Storage *op)
{
    struct arena *a = &h->w->sim.arena;
    if (op->op == WEFT__V1__STORAGE_OP__STORAGE_FIND)
        return; // a host whose folders find nothing again: then jobs are lost, never wrong
    struct act *x = arena_new(a, struct act);
    Weft__V1__Storage *o = arena_dup(a, op, sizeof *op);
    o->job = dup_or_empty(a, op->job);
    o->attempt_id = dup_or_empty(a, op->attempt_id);
    o->name = dup_or_empty(a, op->name);
    o->resolved = dup_or_empty(a, op->resolved);
    o->dir = dup_or_empty(a, op->dir);
    o->nonce = dup_or_empty(a, op->nonce);
    o->nonces = arena_array(a, char *, op->n_nonces + 1);
    for (size_t i = 0; i < op->n_nonces; i++)
        o->nonces[i] = arena_strdup(a, op->nonces[i]);
    *x = (struct act){.host = h, .op = o, .arena = a};
    weft__v1__storage_done__init(&x->done);
    x->done.op = op->op;
    x->done.job = o->job;
    x->done.attempt = op->attempt;
    x->done.attempt_id = o->attempt_id;
    fiber_start(h->proc, op->op == WEFT__V1__STORAGE_OP__STORAGE_FENCE ? ACT_FENCE : ACT_PROBE,
                body, NULL, x);
}
