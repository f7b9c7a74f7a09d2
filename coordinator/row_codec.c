// SPDX-License-Identifier: Apache-2.0
// Structs to rows and back; see row_codec.h.
#include "coordinator/row_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/life.h"
#include "coordinator/outbox.h"
#include "coordinator/plain_text.h"

// An empty row: ROW_NEW(Audit, audit, row). (The generated initialisers cast const away.)
#define ROW_NEW(Type, type, name) \
    Weft__Rows__##Type name;      \
    weft__rows__##type##__init(&name)
#define OUT_ROW(c, WHICH, row)   out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(row)->base, false)
#define OUT_ERASE(c, WHICH, row) out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(row)->base, true)

// A row only reads its texts, and protobuf-c wants them without const.
#define TEXT(s) frame_text(s)

// ---- jobs ----

static void fill_placement(const struct job_record *j, struct arena *a, Weft__Rows__Job *row)
{
    row->placement = arena_array(a, Weft__Rows__Placed *, j->nplaced);
    for (int r = 0; r < j->nplaced; r++) {
        const struct placed *p = &j->placement[r];
        Weft__Rows__Placed *out = arena_new(a, Weft__Rows__Placed);
        weft__rows__placed__init(out);
        out->rank = r;
        out->host = TEXT(p->host);
        out->incarnation = TEXT(p->incarnation);
        out->device = p->device;
        out->reaped = p->reaped;
        row->placement[row->n_placement++] = out;
    }
}

static void fill_spent(const struct job_record *j, struct arena *a, Weft__Rows__Job *row)
{
    row->spent = arena_array(a, Weft__Rows__Spent *, TIME_KINDS);
    for (int k = 0; k < TIME_KINDS; k++) {
        if (!j->spent_ms[k])
            continue;
        Weft__Rows__Spent *s = arena_new(a, Weft__Rows__Spent);
        weft__rows__spent__init(s);
        s->what = TEXT(time_word((enum time_kind)k));
        s->ms = j->spent_ms[k];
        row->spent[row->n_spent++] = s;
    }
}

static void fill_state(const struct job_record *j, Weft__Rows__Job *row)
{
    row->state = (Weft__Rows__JobState)j->state;
    row->old_state = (Weft__Rows__JobState)j->stored;
    row->goal = (Weft__Rows__JobState)j->goal;
    row->goal_why = j->goal_why;
    row->diagnosis = j->diagnosis;
    row->exit_code = job_exit_code(j);
    row->queued_ms = j->queued_ms;
    row->ended_ms = j->ended_ms;
    row->events = j->events;
    row->spent_ms = j->counted_ms;
}

static void fill_attempt(const struct job_record *j, Weft__Rows__Job *row)
{
    union {
        const unsigned char *from;
        unsigned char *to;
    } key = {.from = j->key};
    row->epoch = j->epoch;
    row->attempt_id = TEXT(j->attempt_id);
    row->key.data = key.to;
    row->key.len = j->attempt_id[0] ? sizeof j->key : 0;
    row->fenced = j->fenced;
    row->restore = j->restore;
    row->restore_step = j->restore_step;
    row->last_step = j->last_step;
    row->committed_step = j->committed_step;
    row->committed_epoch = j->committed_epoch;
    row->store = j->store;
}

static void fill_failures(const struct job_record *j, Weft__Rows__Job *row)
{
    row->failures_ms = j->failures_ms;
    row->n_failures_ms = (size_t)j->nfailures;
    row->budget_used = j->nfailures;
    row->committed_since = j->committed_since;
    row->same_failure_step = j->same_failure_step;
    row->same_failures = j->same_failures;
    row->barren = j->barren;
    row->not_before_ms = j->not_before_ms;
    row->restarts = j->restarts;
}

void row_write_job(const struct job_record *j)
{
    struct arena *a = j->coord->out->arena;
    ROW_NEW(Job, job, row);
    row.id = TEXT(j->id);
    row.name = j->name;
    row.owner = j->owner;
    row.seq = j->seq;
    row.submitted_ms = j->submitted_ms;
    row.priority = j->priority;
    row.resolved = j->resolved;
    row.job_hash = TEXT(j->job_hash);
    row.base_dir = j->base_dir;
    row.ranks = j->ranks;
    row.kind = TEXT(j->kind);
    row.max_hosts = j->max_hosts;
    row.steps = j->steps;
    row.run_id = TEXT(j->run_id);
    fill_state(j, &row);
    fill_attempt(j, &row);
    fill_failures(j, &row);
    fill_placement(j, a, &row);
    fill_spent(j, a, &row);
    OUT_ROW(j->coord, JOB, &row);
}

void row_erase_job(const struct job_record *j)
{
    ROW_NEW(Job, job, row);
    row.id = TEXT(j->id);
    OUT_ERASE(j->coord, JOB, &row);
}

static void read_id(char out[ID_LEN], const char *s)
{
    snprintf(out, ID_LEN, "%s", s);
}

static void read_placement(const Weft__Rows__Job *row, struct job_record *j)
{
    j->placement = calloc(row->n_placement + 1, sizeof *j->placement);
    PRE(j->placement != NULL);
    for (size_t i = 0; i < row->n_placement && j->nplaced < j->ranks; i++) {
        struct placed *p = &j->placement[j->nplaced++];
        read_id(p->host, row->placement[i]->host);
        read_id(p->incarnation, row->placement[i]->incarnation);
        p->device = row->placement[i]->device;
        p->reaped = row->placement[i]->reaped;
    }
}

static void read_attempt(const Weft__Rows__Job *row, struct job_record *j)
{
    j->epoch = row->epoch;
    read_id(j->attempt_id, row->attempt_id);
    if (row->key.len == sizeof j->key)
        memcpy(j->key, row->key.data, sizeof j->key);
    j->fenced = row->fenced;
    text_set(&j->restore, row->restore);
    j->restore_step = row->restore_step;
    j->last_step = row->last_step;
    j->committed_step = row->committed_step;
    j->committed_epoch = row->committed_epoch;
    text_set(&j->store, row->store);
    read_placement(row, j);
}

static void read_failures(const Weft__Rows__Job *row, struct job_record *j)
{
    j->failures_ms = calloc(row->n_failures_ms + 1, sizeof *j->failures_ms);
    PRE(j->failures_ms != NULL);
    for (size_t i = 0; i < row->n_failures_ms; i++)
        j->failures_ms[j->nfailures++] = row->failures_ms[i];
    j->committed_since = row->committed_since;
    j->same_failure_step = row->same_failure_step;
    j->same_failures = row->same_failures;
    j->barren = row->barren;
    j->not_before_ms = row->not_before_ms;
    j->restarts = row->restarts;
}

static void read_times(const Weft__Rows__Job *row, struct job_record *j)
{
    j->submitted_ms = row->submitted_ms;
    j->queued_ms = row->queued_ms;
    j->ended_ms = row->ended_ms;
    j->counted_ms = row->spent_ms;
    for (size_t i = 0; i < row->n_spent; i++) {
        enum time_kind k = time_of_word(row->spent[i]->what);
        if (k < TIME_KINDS)
            j->spent_ms[k] = row->spent[i]->ms;
    }
}

int row_read_job(const Weft__Rows__Job *row, struct job_record *j, struct err *e)
{
    if (strlen(row->id) != ID_LEN - 1 || (int)row->state < (int)JOB_QUEUED ||
        (int)row->state >= (int)JOB_STATES || row->ranks < 1 || row->ranks > RANK_MAX)
        return err_set(e, ERR_DATA, "the row of job '%s' is damaged", row->id);
    read_id(j->id, row->id);
    read_id(j->run_id, row->run_id);
    text_set(&j->name, row->name);
    text_set(&j->owner, row->owner);
    text_set(&j->resolved, row->resolved);
    text_set(&j->base_dir, row->base_dir);
    snprintf(j->job_hash, sizeof j->job_hash, "%s", row->job_hash);
    snprintf(j->kind, sizeof j->kind, "%s", row->kind);
    j->state = j->stored = (enum job_state)row->state;
    j->goal = (enum job_state)row->goal;
    text_set(&j->goal_why, row->goal_why);
    text_set(&j->diagnosis, row->diagnosis);
    j->seq = row->seq;
    j->priority = row->priority;
    j->steps = row->steps;
    j->ranks = row->ranks;
    j->max_hosts = row->max_hosts;
    j->events = row->events;
    read_times(row, j);
    read_attempt(row, j);
    read_failures(row, j);
    return 0;
}

// ---- events ----

void row_of_event(const struct event_record *e, Weft__Rows__Event *out)
{
    weft__rows__event__init(out);
    out->job = TEXT(e->job);
    out->seq = e->seq;
    out->t_ms = e->t_ms;
    out->state = (Weft__Rows__JobState)e->state;
    out->kind = TEXT(event_word(e->kind));
    out->rank = e->rank;
    out->host = TEXT(e->host);
    out->step = e->step;
    out->text = TEXT(e->text);
}

void row_write_event(struct coord *c, const struct event_record *e)
{
    Weft__Rows__Event row;
    row_of_event(e, &row);
    OUT_ROW(c, EVENT, &row);
}

void row_erase_event(struct coord *c, const char *job, uint64_t seq)
{
    ROW_NEW(Event, event, row);
    row.job = TEXT(job);
    row.seq = seq;
    OUT_ERASE(c, EVENT, &row);
}

// ---- checkpoints ----

void row_of_checkpoint(const struct job_record *j, const struct checkpoint_record *k,
                       const char *why, Weft__Rows__Checkpoint *out)
{
    weft__rows__checkpoint__init(out);
    out->job = TEXT(j->id);
    out->epoch = (uint64_t)k->id.epoch;
    out->step = k->id.step;
    out->state = (int)k->state;
    out->bad = k->bad;
    out->pinned = k->pinned;
    out->why = TEXT(why);
    out->t_ms = k->t_ms;
}

void row_write_checkpoint(const struct job_record *j, const struct checkpoint_record *k,
                          const char *why)
{
    Weft__Rows__Checkpoint row;
    row_of_checkpoint(j, k, why, &row);
    OUT_ROW(j->coord, CHECKPOINT, &row);
}

void row_erase_checkpoint(const struct job_record *j, const struct checkpoint_record *k)
{
    Weft__Rows__Checkpoint row;
    row_of_checkpoint(j, k, "", &row);
    OUT_ERASE(j->coord, CHECKPOINT, &row);
}

void row_read_checkpoint(const Weft__Rows__Checkpoint *row, struct checkpoint_record *k)
{
    *k = (struct checkpoint_record){.id = {(int64_t)row->epoch, row->step},
                                    .state = (enum commit_state)row->state,
                                    .bad = row->bad,
                                    .pinned = row->pinned,
                                    .t_ms = row->t_ms};
}

// ---- hosts ----

void row_write_host(struct coord *c, const struct host *h)
{
    ROW_NEW(Host, host, row);
    row.id = TEXT(h->id);
    row.name = h->name;
    row.incarnation = TEXT(h->incarnation);
    row.cordoned = h->cordoned;
    row.draining = h->draining;
    row.seen_ms = h->seen_ms;
    OUT_ROW(c, HOST, &row);
}

void row_erase_host(struct coord *c, const struct host *h)
{
    ROW_NEW(Host, host, row);
    row.id = TEXT(h->id);
    OUT_ERASE(c, HOST, &row);
}

void row_read_host(const Weft__Rows__Host *row, struct host *h)
{
    text_set(&h->name, row->name);
    h->cordoned = row->cordoned;
    h->draining = row->draining;
    h->seen_ms = row->seen_ms;
}

static void row_of_fence(const struct fenced *f, Weft__Rows__Fenced *out)
{
    weft__rows__fenced__init(out);
    out->host = TEXT(f->host);
    out->incarnation = TEXT(f->incarnation);
    out->why = TEXT(fence_word(f->why));
    out->t_ms = f->t_ms;
}

void row_write_fence(struct coord *c, const struct fenced *f)
{
    Weft__Rows__Fenced row;
    row_of_fence(f, &row);
    OUT_ROW(c, FENCED, &row);
}

void row_erase_fence(struct coord *c, const struct fenced *f)
{
    Weft__Rows__Fenced row;
    row_of_fence(f, &row);
    OUT_ERASE(c, FENCED, &row);
}

void row_read_fence(const Weft__Rows__Fenced *row, struct fenced *f)
{
    read_id(f->host, row->host);
    read_id(f->incarnation, row->incarnation);
    f->why = fence_of_word(row->why);
    if (f->why == FENCE_REASONS) // another version's word
        f->why = FENCE_LEASE;
    f->t_ms = row->t_ms;
}

// ---- requests, the audit, the rest ----

void row_write_request(struct coord *c, const struct request *q)
{
    ROW_NEW(Request, request, row);
    unsigned char digest[REQUEST_DIGEST];
    memcpy(digest, q->digest, sizeof digest);
    row.id = q->id;
    row.digest.data = digest;
    row.digest.len = sizeof digest;
    row.reply.data = q->reply;
    row.reply.len = q->reply_len;
    row.t_ms = q->t_ms;
    OUT_ROW(c, REQUEST, &row);
}

void row_erase_request(struct coord *c, const struct request *q)
{
    ROW_NEW(Request, request, row);
    row.id = q->id;
    OUT_ERASE(c, REQUEST, &row);
}

void row_read_request(const Weft__Rows__Request *row, struct request *q)
{
    q->id = strdup(row->id);
    q->reply = malloc(row->reply.len + 1);
    PRE(q->id && q->reply);
    if (row->digest.len == sizeof q->digest) // else no call has it
        memcpy(q->digest, row->digest.data, sizeof q->digest);
    if (row->reply.len)
        memcpy(q->reply, row->reply.data, row->reply.len);
    q->reply_len = row->reply.len;
    q->t_ms = row->t_ms;
}

void row_write_audit(struct coord *c, const struct audit_record *a)
{
    ROW_NEW(Audit, audit, row);
    row.seq = a->seq;
    row.t_ms = a->t_ms;
    row.who = TEXT(a->who);
    row.role = TEXT(a->role);
    row.verb = TEXT(audit_word(a->verb));
    row.target = TEXT(a->target);
    row.result = TEXT(a->result);
    OUT_ROW(c, AUDIT, &row);
}

void row_erase_audit(struct coord *c, uint64_t seq)
{
    ROW_NEW(Audit, audit, row);
    row.seq = seq;
    OUT_ERASE(c, AUDIT, &row);
}

void row_write_meta(struct coord *c)
{
    ROW_NEW(Meta, meta, row);
    row.cluster = c->cluster;
    row.next_seq = c->next_seq;
    row.next_audit = c->next_audit;
    row.lost_ms = c->lost_ms;
    OUT_ROW(c, META, &row);
}

void row_read_meta(struct coord *c, const Weft__Rows__Meta *row)
{
    if (row->cluster[0])
        read_id(c->cluster, row->cluster);
    if (row->next_seq > c->next_seq)
        c->next_seq = row->next_seq;
    if (row->next_audit > c->next_audit)
        c->next_audit = row->next_audit;
    c->lost_ms = row->lost_ms;
    c->had_meta = true;
}
