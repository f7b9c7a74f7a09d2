// SPDX-License-Identifier: Apache-2.0
// A simulated rank's saver: what worker/rank/save/snapshot.c does, on a fiber instead of a thread,
// with the real store. One order at a time, in order.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/stream.h"
#include "tests/sim/mutate.h"
#include "tests/sim/rank.h"
#include "tests/sim/sim_check.h"

int shard_text(const char *job, int64_t step, int rank, char out[200])
{
    return snprintf(out, 200, "shard %d of job %s after step %" PRId64 ", whole\n", rank, job,
                    step);
}

double sim_eval_loss(int64_t step)
{
    return (double)(step * 7 % 11);
}

bool save_busy(const struct rank *r)
{
    return r->open_step >= 0 || r->staged;
}

bool save_idle(const struct rank *r)
{
    return !save_busy(r) && !r->busy && !r->orders;
}

// ---- carried out on the fiber ----
static int write_shard(struct order *o, struct store *s, struct err *e)
{
    struct rank *r = o->rank;
    struct stream to = {0};
    char name[64], text[200];
    int dir = -1, len = shard_text(r->job, o->id.step, r->rank, text);
    manifest_file_name(r->rank, r->n, name);
    if (r->rank == 0)
        store_sweep(s, o->id.attempt, o->id.step);
    int rc = store_begin(s, o->id.attempt, o->id.step, &dir, e);
    rc = rc ? rc : stream_create(&to, dir, name, e);
    if (!rc) {
        rc = stream_write(&to, text, (size_t)len / 2, e);
        rc = rc ? rc : stream_write(&to, text + len / 2, (size_t)(len - len / 2), e);
        rc = rc ? rc : stream_sync(&to, e);
        int closed = stream_close(&to, rc ? NULL : e);
        rc = rc ? rc : closed;
        if (rc)
            unlinkat(dir, name, 0);
    }
    rc = rc ? rc : store_sync_shard(s, dir, e);
    if (dir >= 0)
        close(dir);
    return rc;
}

static int commit_one(struct order *o, struct store *s, struct err *e)
{
    struct rank *r = o->rank;
    struct manifest_file files[MAX_RANKS] = {{0}};
    char names[MAX_RANKS][64];
    struct manifest m = {.cluster = "c",
                         .job = r->job,
                         .name = r->kind->name,
                         .job_hash = "h",
                         .run = "r",
                         .attempt = o->id.attempt,
                         .step = o->id.step,
                         .tokenizer = "",
                         .optimizer = "sgd",
                         .evaluated = true,
                         .eval_loss = sim_eval_loss(o->id.step),
                         .resolved = "name: test\n",
                         .parent_attempt = -1,
                         .parent_step = -1,
                         .nfiles = r->n,
                         .files = files,
                         .numerics = {"b", "d", "i", "l", "a", "c", 1, true}};
    for (int i = 0; i < r->n; i++) {
        manifest_file_name(i, r->n, names[i]);
        files[i] = (struct manifest_file){.name = names[i], .bytes = o->reports[i].bytes};
    }
    return store_commit(s, &m, e);
}

static void carry_out(void *arg)
{
    struct order *o = arg;
    struct rank *r = o->rank;
    struct store s = {.fd = -1};
    struct err e = {0};
    int rc = 0;
    if (o->kind == ORDER_COMMIT && r->answered_step == o->id.step && !MUTATED(first_answer))
        return;
    rc = store_open(&s, NULL, r->store, &e);
    if (!rc && o->kind == ORDER_WRITE)
        rc = write_shard(o, &s, &e);
    else if (!rc && o->kind == ORDER_COMMIT)
        rc = commit_one(o, &s, &e);
    else if (!rc && o->kind == ORDER_REMOVE)
        rc = store_abort(&s, o->id.attempt, o->id.step, &e);
    else if (!rc)
        rc = store_delete(&s, o->id.attempt, o->id.step, &e);
    store_close(&s);
    o->code = rc;
    snprintf(o->text, sizeof o->text, "%.190s", e.text);
    if (o->kind == ORDER_COMMIT) {
        r->answered_step = o->id.step;
        r->answered_code = rc;
        memcpy(r->answered_text, o->text, sizeof r->answered_text);
    }
}

// ---- told afterwards ----
static void next_order(struct rank *r);

static void say_shard(struct rank *r, const struct order *o)
{
    uint8_t digest[16] = {0};
    char text[200];
    FRAME_BODY(b, ShardDone, shard_done);
    b.rank = r->rank;
    b.step = o->id.step;
    b.code = o->code;
    b.text = frame_text(o->text);
    b.bytes = (uint64_t)shard_text(r->job, o->id.step, r->rank, text);
    b.head_bytes = 8;
    b.head_digest.data = digest;
    b.head_digest.len = 16;
    b.digests.data = digest;
    b.digests.len = 16;
    b.evaluated = true;
    b.eval_loss = sim_eval_loss(o->id.step);
    FRAME(f, SHARD_DONE, shard_done, &b);
    if (!o->code)
        check_shard_done(r, o->id.step);
    rank_says(r, &f);
}

static void say_commit(struct rank *r, const struct order *o)
{
    FRAME_BODY(b, CommitDone, commit_done);
    b.step = o->id.step;
    b.code = r->answered_code;
    b.text = r->answered_text;
    FRAME(f, COMMIT_DONE, commit_done, &b);
    check_answered(r, o->id.step, r->answered_code);
    rank_says(r, &f);
}

static void say_deleted(struct rank *r, const struct order *o)
{
    FRAME_BODY(b, Deleted, deleted);
    b.attempt = o->id.attempt;
    b.step = o->id.step;
    b.code = o->code;
    FRAME(f, DELETED, deleted, &b);
    rank_says(r, &f);
}

static void carried_out(void *arg)
{
    static const char *const names[] = {"shard", "commit", "remove", "delete"};
    struct order *o = arg;
    struct rank *r = o->rank;
    TRACE(&r->w->sim, r->proc.who, "%s of step %d.a%d: %s", names[o->kind], (int)o->id.step,
          (int)o->id.attempt, o->code ? o->text : "done");
    r->busy = false;
    if (o->kind == ORDER_WRITE) {
        r->staged = false;
        if (r->open_step == o->id.step)
            say_shard(r, o);
    } else if (o->kind == ORDER_COMMIT) {
        say_commit(r, o);
    } else if (o->kind == ORDER_DELETE) {
        say_deleted(r, o);
    }
    next_order(r);
    rank_waited(r);
}

static void next_order(struct rank *r)
{
    static const enum fiber_act acts[] = {ACT_SHARD, ACT_COMMIT, ACT_REMOVE, ACT_DELETE};
    struct order *o = r->orders;
    if (r->busy || !o)
        return;
    r->orders = o->next;
    r->busy = true;
    fiber_start(&r->proc, acts[o->kind], carry_out, carried_out, o);
}

static struct order *push(struct rank *r, enum order_kind kind, int64_t attempt, int64_t step)
{
    struct order *o = arena_new(&r->w->sim.arena, struct order);
    o->kind = kind;
    o->id = (struct store_entry){attempt, step};
    o->rank = r;
    if (r->orders)
        r->last_order->next = o;
    else
        r->orders = o;
    r->last_order = o;
    return o;
}

// ---- the training thread's side ----
void save_begin(struct rank *r, int64_t step)
{
    if (save_busy(r))
        sim_fail(&r->w->sim, "%s begins a save of step %d while that of step %d is open",
                 r->proc.who, (int)step, (int)r->open_step);
    r->open_step = r->opened_at = step;
    r->staged = true;
    push(r, ORDER_WRITE, (int64_t)r->attempt, step);
    next_order(r);
}

static void settle(struct rank *r, int64_t step, bool ok)
{
    if (r->open_step != step)
        return;
    r->open_step = -1;
    r->last_ok = ok;
    if (!ok && r->rank == 0)
        push(r, ORDER_REMOVE, (int64_t)r->attempt, step);
}

static void on_commit(struct rank *r, const Weft__Rank__Commit *c)
{
    struct order *o = push(r, ORDER_COMMIT, (int64_t)r->attempt, c->step);
    o->reports = arena_array(&r->w->sim.arena, struct shard_report, r->n);
    for (size_t i = 0; i < c->n_shards && (int)i < r->n; i++)
        o->reports[i].bytes = c->shards[i]->bytes;
    check_ordered(r, c);
}

void save_hears(struct rank *r, const Weft__Rank__Frame *f)
{
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_COMMIT:
        on_commit(r, f->commit);
        break;
    case WEFT__RANK__FRAME__BODY_COMMITTED:
        check_heard(r, f->committed->step, true);
        settle(r, f->committed->step, true);
        break;
    case WEFT__RANK__FRAME__BODY_ABORTED:
        check_heard(r, f->aborted->step, false);
        settle(r, f->aborted->step, false);
        break;
    case WEFT__RANK__FRAME__BODY_DELETE:
        push(r, ORDER_DELETE, f->delete_->attempt, f->delete_->step);
        break;
    default:
        break;
    }
    next_order(r);
    rank_waited(r);
}
