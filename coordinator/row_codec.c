// SPDX-License-Identifier: Apache-2.0
// Structs to rows and back; see row_codec.h.
#include "coordinator/row_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job_sharding.h"
#include "coordinator/kept_text.h"
#include "coordinator/outbox.h"

// An empty row: ROW_NEW(Audit, audit, row). (The generated initialisers cast const away.)
#define ROW_NEW(Type, type, name) \
    Weft__Rows__##Type name;      \
    weft__rows__##type##__init(&name)
#define OUT_ROW(c, WHICH, row)   out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(row)->base, false)
#define OUT_ERASE(c, WHICH, row) out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(row)->base, true)

// Rows do not change their texts, but protobuf-c wants them without const.
#define TEXT(s) frame_text(s)

// ---- columns ----

// A member that goes into its row as it is, and comes back as it was. Enums are numbers.
struct column {
    enum { COLUMN_NUMBER, COLUMN_BOOL, COLUMN_ARRAY, COLUMN_TEXT } kind;
    size_t of_struct, size; // an ARRAY of characters is a pointer in its row
    size_t of_row, row_size;
};
#define COLUMN(Struct, Row, KIND, member, row_member)                                         \
    {                                                                                         \
        COLUMN_##KIND, offsetof(struct Struct, member), sizeof(((struct Struct *)0)->member), \
            offsetof(Row, row_member), sizeof(((Row *)0)->row_member)                         \
    }
#define JOB(KIND, member)  COLUMN(job_record, Weft__Rows__Job, KIND, member, member)
#define HOST(KIND, member) COLUMN(host, Weft__Rows__Host, KIND, member, member)
#define CHECKPOINT(KIND, member) \
    COLUMN(checkpoint_record, Weft__V1__Checkpoint, KIND, member, member)

static const struct column job_columns[] = {
    JOB(ARRAY, id),
    JOB(TEXT, name),
    JOB(TEXT, owner),
    JOB(TEXT, found),
    JOB(NUMBER, state),
    JOB(NUMBER, goal),
    JOB(TEXT, goal_why),
    JOB(NUMBER, seq),
    JOB(NUMBER, submitted_ms),
    JOB(NUMBER, queued_ms),
    JOB(NUMBER, ended_ms),
    JOB(NUMBER, priority),
    JOB(TEXT, resolved),
    JOB(ARRAY, job_hash),
    JOB(TEXT, base_dir),
    JOB(NUMBER, ranks),
    JOB(NUMBER, max_hosts),
    JOB(NUMBER, steps),
    JOB(ARRAY, run_id),
    JOB(NUMBER, epoch),
    JOB(ARRAY, attempt_id),
    JOB(BOOL, fenced),
    JOB(TEXT, restore),
    JOB(NUMBER, restore_step),
    JOB(NUMBER, last_step),
    JOB(NUMBER, committed_step),
    JOB(NUMBER, committed_epoch),
    JOB(NUMBER, same_failure_step),
    JOB(NUMBER, same_failures),
    JOB(NUMBER, barren),
    JOB(NUMBER, not_before_ms),
    JOB(NUMBER, restarts),
    JOB(TEXT, diagnosis),
    JOB(NUMBER, events),
    JOB(BOOL, committed_since),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, counted_ms, spent_ms),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, counted_ns, spent_ns),
    JOB(NUMBER, since_ckpt_ms),
    JOB(NUMBER, untidy),
    JOB(NUMBER, unsaved),
    JOB(NUMBER, unsaved_ms),
    JOB(NUMBER, unsaved_ns),
    JOB(TEXT, unsaved_why),
    JOB(TEXT, removed),
    JOB(BOOL, goes_on),
    JOB(NUMBER, threads),
    JOB(TEXT, threads_why),
    JOB(TEXT, store),
    JOB(TEXT, mesh),
    COLUMN(job_record, Weft__Rows__Job, BOOL, report.known, reported),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, report.loss, loss),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, report.tokens_per_s, tokens_per_s),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, report.samples_per_s, samples_per_s),
    COLUMN(job_record, Weft__Rows__Job, BOOL, report.evaluated, evaluated),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, report.eval_loss, eval_loss),
    COLUMN(job_record, Weft__Rows__Job, NUMBER, report.eval_accuracy, eval_accuracy),
};
static const struct column host_columns[] = {
    HOST(ARRAY, id),      HOST(TEXT, name),     HOST(ARRAY, incarnation),
    HOST(BOOL, cordoned), HOST(BOOL, draining), HOST(NUMBER, seen_ms),
};
static const struct column checkpoint_columns[] = {
    COLUMN(checkpoint_record, Weft__V1__Checkpoint, NUMBER, id.epoch, epoch),
    COLUMN(checkpoint_record, Weft__V1__Checkpoint, NUMBER, id.step, step),
    CHECKPOINT(NUMBER, state),
    CHECKPOINT(BOOL, bad),
    CHECKPOINT(NUMBER, t_ms),
    CHECKPOINT(ARRAY, why),
};
#define COUNT(columns) ((int)(sizeof(columns) / sizeof *(columns)))

static void fill_row(const struct column *columns, int n, const void *from, void *row)
{
    char *base = frame_borrow(from);
    for (const struct column *k = columns; k < columns + n; k++) {
        char *in = base + k->of_struct, *out = (char *)row + k->of_row;
        protobuf_c_boolean flag;
        switch (k->kind) {
        case COLUMN_BOOL:
            flag = *(bool *)(void *)in;
            memcpy(out, &flag, sizeof flag);
            break;
        case COLUMN_ARRAY:
            memcpy(out, &in, sizeof in);
            break;
        default: // a number or a pointer, the same on both sides
            PRE(k->size == k->row_size);
            memcpy(out, in, k->size);
        }
    }
}

static void read_row(const struct column *columns, int n, const void *row, void *to)
{
    for (const struct column *k = columns; k < columns + n; k++) {
        char *out = (char *)to + k->of_struct;
        const char *in = (const char *)row + k->of_row, *text;
        protobuf_c_boolean flag;
        switch (k->kind) {
        case COLUMN_BOOL:
            memcpy(&flag, in, sizeof flag);
            *(bool *)(void *)out = flag;
            break;
        case COLUMN_ARRAY:
            memcpy(&text, in, sizeof text);
            snprintf(out, k->size, "%s", text);
            break;
        case COLUMN_TEXT:
            memcpy(&text, in, sizeof text);
            text_set((char **)(void *)out, text);
            break;
        default:
            PRE(k->size == k->row_size);
            memcpy(out, in, k->size);
        }
    }
}

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

void row_fill_spent(const int64_t ms[TIME_KINDS], struct arena *a, Weft__V1__Spent ***out,
                    size_t *n)
{
    *n = 0;
    *out = arena_array(a, Weft__V1__Spent *, TIME_KINDS);
    for (enum time_kind k = 0; k < TIME_KINDS; k++) {
        if (!ms[k])
            continue;
        Weft__V1__Spent *s = arena_new(a, Weft__V1__Spent);
        weft__v1__spent__init(s);
        s->what = arena_strdup(a, time_word(k));
        s->ms = ms[k];
        (*out)[(*n)++] = s;
    }
}

void row_write_job(const struct job_record *j)
{
    struct arena *a = j->coord->out->arena;
    unsigned char key[sizeof j->key];
    ROW_NEW(Job, job, row);
    fill_row(job_columns, COUNT(job_columns), j, &row);
    row.old_state = (Weft__V1__JobState)j->stored;
    row.kind = TEXT(job_device_kind(j->kind));
    row.exit_code = job_exit_code(j);
    row.spent_boot = TEXT(j->coord->boot);
    memcpy(key, j->key, sizeof key);
    row.key.data = key;
    row.key.len = j->attempt_id[0] ? sizeof key : 0;
    row.failures_ms = j->failures_ms;
    row.n_failures_ms = (size_t)j->nfailures;
    row.budget_used = j->nfailures;
    fill_placement(j, a, &row);
    row_fill_spent(j->spent_ms, a, &row.spent, &row.n_spent);
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

int row_read_job(const Weft__Rows__Job *row, struct job_record *j, struct err *e)
{
    if (strlen(row->id) != ID_LEN - 1 || (int)row->state < (int)JOB_QUEUED ||
        (int)row->state >= (int)JOB_STATES || row->ranks < 1 || row->ranks > JOB_MAX_DEVICES ||
        device_kind_of_word(row->kind) == JOB_DEVICE_KINDS)
        return err_set(e, ERR_DATA, "the row of job '%s' is damaged", row->id);
    read_row(job_columns, COUNT(job_columns), row, j);
    j->stored = j->state;
    j->kind = device_kind_of_word(row->kind);
    j->counted_elsewhere = strcmp(row->spent_boot, j->coord->boot) != 0;
    if (row->key.len == sizeof j->key)
        memcpy(j->key, row->key.data, sizeof j->key);
    read_placement(row, j);
    j->failures_ms = calloc(row->n_failures_ms + 1, sizeof *j->failures_ms);
    PRE(j->failures_ms != NULL);
    for (size_t i = 0; i < row->n_failures_ms; i++)
        j->failures_ms[j->nfailures++] = row->failures_ms[i];
    for (size_t i = 0; i < row->n_spent; i++) {
        enum time_kind k = time_of_word(row->spent[i]->what);
        if (k < TIME_KINDS)
            j->spent_ms[k] = row->spent[i]->ms;
    }
    return 0;
}

// ---- events ----

void row_of_event(const struct event_record *e, Weft__V1__Event *out)
{
    weft__v1__event__init(out);
    out->job = TEXT(e->job);
    out->seq = e->seq;
    out->t_ms = e->t_ms;
    out->state = (Weft__V1__JobState)e->state;
    out->kind = TEXT(event_word(e->kind));
    out->rank = e->rank;
    out->host = TEXT(e->host);
    out->step = e->step;
    out->text = TEXT(e->text);
}

void row_write_event(struct coord *c, const struct event_record *e)
{
    Weft__V1__Event row;
    row_of_event(e, &row);
    OUT_ROW(c, EVENT, &row);
}

void row_erase_event(struct coord *c, const char *job, uint64_t seq)
{
    V1_NEW(Event, event, row);
    row.job = TEXT(job);
    row.seq = seq;
    OUT_ERASE(c, EVENT, &row);
}

// ---- checkpoints ----

void row_of_checkpoint(const struct job_record *j, const struct checkpoint_record *k,
                       Weft__V1__Checkpoint *out)
{
    weft__v1__checkpoint__init(out);
    fill_row(checkpoint_columns, COUNT(checkpoint_columns), k, out);
    out->job = TEXT(j->id);
}

void row_write_checkpoint(const struct job_record *j, const struct checkpoint_record *k)
{
    Weft__V1__Checkpoint row;
    row_of_checkpoint(j, k, &row);
    OUT_ROW(j->coord, CHECKPOINT, &row);
}

void row_erase_checkpoint(const struct job_record *j, const struct checkpoint_record *k)
{
    Weft__V1__Checkpoint row;
    row_of_checkpoint(j, k, &row);
    OUT_ERASE(j->coord, CHECKPOINT, &row);
}

void row_read_checkpoint(const Weft__V1__Checkpoint *row, struct checkpoint_record *k)
{
    read_row(checkpoint_columns, COUNT(checkpoint_columns), row, k);
}

// ---- hosts ----

void row_write_host(struct coord *c, const struct host *h)
{
    ROW_NEW(Host, host, row);
    fill_row(host_columns, COUNT(host_columns), h, &row);
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
    read_row(host_columns, COUNT(host_columns), row, h);
}

static void fill_fence(const struct fenced *f, Weft__Rows__Fenced *out)
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
    fill_fence(f, &row);
    OUT_ROW(c, FENCED, &row);
}

void row_erase_fence(struct coord *c, const struct fenced *f)
{
    Weft__Rows__Fenced row;
    fill_fence(f, &row);
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
