// SPDX-License-Identifier: Apache-2.0
// The tables of columns; snapshots and reading by them. See row.h.
#include "coordinator/decide/row.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/heap.h"
#include "common/job/job_sharding.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/notices.h"
#include "coordinator/decide/requests.h"

// ---- the tables ----

#define MEMBER(FORM, record, member)                                  \
    .form = COLUMN_##FORM, .offset = offsetof(struct record, member), \
    .size = sizeof(((struct record *)0)->member)
#define META(FORM, member)       .name = #member, MEMBER(FORM, coord, member)
#define JOB(FORM, member)        .name = #member, MEMBER(FORM, job_record, member)
#define SPENT(word, KIND)        .name = "spent_" word "_ms", MEMBER(NUMBER, job_record, spent_ms[KIND])
#define REPORT(FORM, member)     .name = #member, MEMBER(FORM, job_record, report.member)
#define HOST(FORM, member)       .name = #member, MEMBER(FORM, host, member)
#define FENCED(FORM, member)     .name = #member, MEMBER(FORM, fenced, member)
#define CHECKPOINT(FORM, member) .name = #member, MEMBER(FORM, checkpoint_record, member)
#define REQUEST(FORM, member)    .name = #member, MEMBER(FORM, request, member)
#define NOTICE(FORM, member)     .name = #member, MEMBER(FORM, notice, member)
#define EVENT(FORM, member)      .name = #member, MEMBER(FORM, event_record, member)
#define AUDIT(FORM, member)      .name = #member, MEMBER(FORM, audit_record, member)

static const struct column meta_columns[] = {
    {META(CHARS, cluster), .key = true},
    {META(NUMBER, next_seq)},
    {META(NUMBER, next_audit)},
    {META(NUMBER, lost_ms)},
    {META(NUMBER, marks)},
};
static const struct column job_columns[] = {
    {JOB(CHARS, id), .key = true},
    {JOB(TEXT, name)},
    {JOB(TEXT, owner)},
    {JOB(TEXT, found)},
    {JOB(TEXT, unlike)},
    {JOB(NUMBER, state), .limit = JOB_STATES},
    {JOB(NUMBER, goal), .limit = JOB_STATES},
    {JOB(TEXT, goal_why)},
    {JOB(NUMBER, seq)},
    {JOB(NUMBER, submitted_ms)},
    {JOB(NUMBER, queued_ms)},
    {JOB(NUMBER, ended_ms)},
    {JOB(NUMBER, priority)},
    {JOB(TEXT, resolved)},
    {JOB(CHARS, job_hash)},
    {JOB(TEXT, base_dir)},
    {JOB(NUMBER, ranks), .limit = JOB_MAX_DEVICES + 1},
    {JOB(WORD, kind), .limit = JOB_DEVICE_KINDS, .word = job_device_kind},
    {JOB(NUMBER, max_hosts)},
    {JOB(NUMBER, steps)},
    {JOB(NUMBER, threads)},
    {JOB(TEXT, threads_why)},
    {JOB(TEXT, mesh)},
    {JOB(TEXT, tags)},
    {JOB(TEXT, notify)},
    {JOB(NUMBER, start_noticed)},
    {JOB(TEXT, checkpoint_dir)},
    {JOB(NUMBER, keep)},
    {JOB(NUMBER, keep_every)},
    {JOB(NUMBER, keep_best)},
    {JOB(TEXT, source)},
    {JOB(NUMBER, source_steps)},
    {JOB(NUMBER, patience_ns)},
    {JOB(NUMBER, budget)},
    {JOB(NUMBER, budget_ns)},
    {JOB(NUMBER, backoff_ns)},
    {JOB(NUMBER, backoff_most_ns)},
    {JOB(NUMBER, hang_after_ns)},
    {JOB(CHARS, run_id)},
    {JOB(NUMBER, attempt)},
    {JOB(CHARS, attempt_id)},
    {JOB(BYTES, key)},
    {JOB(PLACEMENT, placement)},
    {JOB(NUMBER, from_step)},
    {JOB(NUMBER, goes_back)},
    {JOB(NUMBER, fenced)},
    {JOB(TEXT, restore)},
    {JOB(NUMBER, restore_step)},
    {JOB(NUMBER, last_step)},
    {JOB(NUMBER, stalled_at)},
    {JOB(NUMBER, committed_step)},
    {JOB(NUMBER, committed_attempt)},
    {JOB(FAILURES, failures_ms)},
    {JOB(NUMBER, committed_since)},
    {JOB(NUMBER, same_failure_step)},
    {JOB(NUMBER, same_failures)},
    {JOB(NUMBER, failure)},
    {JOB(NUMBER, no_progress)},
    {JOB(NUMBER, not_before_ms)},
    {JOB(NUMBER, restarts)},
    {JOB(TEXT, diagnosis)},
    {JOB(NUMBER, events)},
    {JOB(NUMBER, must_resume)},
    {JOB(NUMBER, trusts_folder)},
    {JOB(NUMBER, untidy)},
    {JOB(NUMBER, deleting)},
    {JOB(TEXT, store)},
    {JOB(TEXT, removed)},
    {JOB(NUMBER, unsaved)},
    {JOB(NUMBER, unsaved_ms)},
    {JOB(NUMBER, unsaved_ns)},
    {JOB(TEXT, unsaved_why)},
    {JOB(NUMBER, counted_ms)},
    {JOB(NUMBER, counted_ns)},
    {JOB(CHARS, counted_boot)},
    {JOB(NUMBER, since_ckpt_ms)},
    {SPENT("queued", TIME_QUEUED)},
    {SPENT("starting", TIME_STARTING)},
    {SPENT("running", TIME_RUNNING)},
    {SPENT("lost", TIME_LOST)},
    {SPENT("recovering", TIME_RECOVERING)},
    {SPENT("draining", TIME_DRAINING)},
    {SPENT("checkpoint", TIME_CHECKPOINT)},
    {SPENT("held", TIME_HELD)},
    {SPENT("failed", TIME_FAILED)},
    {SPENT("cancelled", TIME_CANCELLED)},
    {SPENT("unknown", TIME_UNKNOWN)},
    {.name = "reported", MEMBER(NUMBER, job_record, report.known)},
    {REPORT(REAL, loss)},
    {REPORT(REAL, tokens_per_s)},
    {REPORT(REAL, samples_per_s)},
    {REPORT(NUMBER, evaluated)},
    {REPORT(REAL, eval_loss)},
    {REPORT(REAL, eval_accuracy)},
};
static const struct column host_columns[] = {
    {HOST(CHARS, id), .key = true}, {HOST(TEXT, name)},       {HOST(CHARS, incarnation)},
    {HOST(NUMBER, cordoned)},       {HOST(NUMBER, draining)}, {HOST(NUMBER, seen_ms)},
};
static const struct column fenced_columns[] = {
    {FENCED(CHARS, host), .key = true},
    {FENCED(CHARS, incarnation), .key = true},
    {FENCED(WORD, why), .limit = FENCE_REASONS, .word = fence_word},
    {FENCED(NUMBER, t_ms)},
};
static const struct column checkpoint_columns[] = {
    {CHECKPOINT(CHARS, job), .key = true},
    {.name = "attempt", MEMBER(NUMBER, checkpoint_record, id.attempt), .key = true},
    {.name = "step", MEMBER(NUMBER, checkpoint_record, id.step), .key = true},
    {CHECKPOINT(NUMBER, state)},
    {CHECKPOINT(NUMBER, bad)},
    {CHECKPOINT(NUMBER, scored)},
    {CHECKPOINT(REAL, loss)},
    {CHECKPOINT(CHARS, why)},
    {CHECKPOINT(NUMBER, t_ms)},
};
static const struct column request_columns[] = {
    {REQUEST(TEXT, id), .key = true},
    {REQUEST(BYTES, digest)},
    {REQUEST(BLOB, reply)},
    {REQUEST(NUMBER, t_ms)},
};
static const struct column notice_columns[] = {
    {NOTICE(CHARS, job), .key = true},
    {NOTICE(NUMBER, seq), .key = true},
    {NOTICE(TEXT, receiver), .key = true},
    {NOTICE(WORD, kind), .limit = NOTICE_KINDS, .word = notice_word},
    {NOTICE(NUMBER, attempt)},
    {NOTICE(NUMBER, step)},
    {NOTICE(NUMBER, t_ms)},
    {NOTICE(TEXT, reason)},
};
static const struct column event_columns[] = {
    {EVENT(BORROWED, job), .key = true},
    {EVENT(NUMBER, seq), .key = true},
    {EVENT(NUMBER, t_ms)},
    {EVENT(NUMBER, state), .limit = JOB_STATES},
    {EVENT(WORD, kind), .limit = EVENT_KINDS, .word = event_word},
    {EVENT(NUMBER, rank)},
    {EVENT(BORROWED, host)},
    {EVENT(NUMBER, step)},
    {EVENT(BORROWED, text)},
};
static const struct column audit_columns[] = {
    {AUDIT(NUMBER, seq), .key = true},
    {AUDIT(NUMBER, t_ms)},
    {AUDIT(BORROWED, who)},
    {AUDIT(BORROWED, role)},
    {AUDIT(WORD, verb), .limit = AUDIT_VERBS, .word = audit_word},
    {AUDIT(BORROWED, target)},
    {AUDIT(BORROWED, result)},
};
#define COLUMNS(columns) columns, (int)(sizeof(columns) / sizeof *(columns))
const struct row_table row_tables[ROW_KINDS] = {
    [ROW_META] = {"meta", COLUMNS(meta_columns)},
    [ROW_JOB] = {"job", COLUMNS(job_columns), .order = "seq"},
    [ROW_HOST] = {"host", COLUMNS(host_columns)},
    [ROW_FENCED] = {"fenced", COLUMNS(fenced_columns)},
    [ROW_CHECKPOINT] = {"checkpoint", COLUMNS(checkpoint_columns), .of_job = true},
    [ROW_REQUEST] = {"request", COLUMNS(request_columns), .order = "t_ms"},
    [ROW_NOTICE] = {"notice", COLUMNS(notice_columns), .order = "t_ms, job, seq", .of_job = true},
    [ROW_EVENT] = {"event", COLUMNS(event_columns), .is_log = true, .of_job = true},
    [ROW_AUDIT] = {"audit", COLUMNS(audit_columns), .is_log = true},
};

// ---- from a struct ----

static int64_t get_number(const void *member, size_t size)
{
    PRE(size == sizeof(bool) || size == sizeof(int) || size == sizeof(int64_t));
    return size == sizeof(bool)  ? *(const bool *)member
           : size == sizeof(int) ? *(const int *)member
                                 : *(const int64_t *)member;
}

static void print_placement(const struct job_record *j, struct buf *out)
{
    for (int i = 0; i < j->nplaced; i++) {
        const struct placed *p = &j->placement[i];
        buf_printf(out, "%s %s %d %d\n", p->host, p->incarnation, p->device, p->reaped);
    }
}

static void print_failures(const struct job_record *j, struct buf *out)
{
    for (int i = 0; i < j->nfailures; i++)
        buf_printf(out, "%s%" PRId64, i ? " " : "", j->failures_ms[i]);
}

static void copy_bytes(struct value *v, const void *data, size_t len, struct arena *a)
{
    char *copy = arena_alloc(a, len + 1); // with a zero behind it
    if (len)
        memcpy(copy, data, len);
    v->data = copy;
    v->len = len;
}

static void copy_text(struct value *v, const char *text, struct arena *a)
{
    copy_bytes(v, text, text ? strlen(text) : 0, a);
}

static void make_value(const struct column *c, const void *record, struct value *v, struct arena *a)
{
    const char *member = (const char *)record + c->offset;
    struct buf list = {0};
    size_t len;
    switch (c->form) {
    case COLUMN_NUMBER:
        v->number = get_number(member, c->size);
        return;
    case COLUMN_REAL:
        memcpy(&v->real, member, sizeof v->real);
        return;
    case COLUMN_WORD:
        copy_text(v, c->word((int)get_number(member, c->size)), a);
        return;
    case COLUMN_CHARS:
        copy_text(v, member, a);
        return;
    case COLUMN_TEXT:
    case COLUMN_BORROWED:
        copy_text(v, *(const char *const *)(const void *)member, a);
        return;
    case COLUMN_FAILURES:
    case COLUMN_PLACEMENT:
        (c->form == COLUMN_FAILURES ? print_failures : print_placement)(record, &list);
        copy_bytes(v, list.data, list.len, a);
        buf_clear(&list);
        return;
    case COLUMN_BYTES:
        copy_bytes(v, member, c->size, a);
        return;
    case COLUMN_BLOB:
        memcpy(&len, member + c->size, sizeof len);
        copy_bytes(v, *(const char *const *)(const void *)member, len, a);
        return;
    }
}

struct row row_make(enum row_kind kind, const void *record, struct arena *a)
{
    const struct row_table *t = &row_tables[kind];
    struct row r = {.kind = kind, .values = arena_array(a, struct value, t->ncolumns)};
    for (int i = 0; i < t->ncolumns; i++)
        make_value(&t->columns[i], record, &r.values[i], a);
    return r;
}

// ---- into a struct ----

static void set_number(void *member, size_t size, int64_t number)
{
    if (size == sizeof(bool))
        *(bool *)member = number != 0;
    else if (size == sizeof(int))
        *(int *)member = (int)number;
    else
        *(int64_t *)member = number;
}

static int find_word(const struct column *c, const char *word)
{
    int i = 0;
    while (i < c->limit && strcmp(c->word(i), word) != 0)
        i++;
    return i;
}

static int count_char(const char *text, char wanted)
{
    int n = 0;
    for (; *text; text++)
        n += *text == wanted;
    return n;
}

// The lists of a job are read once, into a record that has none.
static bool read_placement(struct job_record *j, const char *text)
{
    j->placement = heap_alloc(sizeof *j->placement * (size_t)(count_char(text, '\n') + 1));
    for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
        struct placed *p = &j->placement[j->nplaced++];
        char line[2 * ID_LEN + 40];
        int reaped;
        snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
        if (sscanf(line, "%32s %32s %d %d", p->host, p->incarnation, &p->device, &reaped) != 4)
            return false;
        p->reaped = reaped;
    }
    return !*text && (!j->nplaced || j->nplaced == j->ranks);
}

static bool read_failures(struct job_record *j, const char *text)
{
    j->failures_ms = heap_alloc(sizeof *j->failures_ms * (size_t)(count_char(text, ' ') + 1));
    for (char *end; *text; text = end + (*end == ' ')) {
        j->failures_ms[j->nfailures++] = strtoll(text, &end, 10);
        if (end == text || (*end && *end != ' '))
            return false;
    }
    return true;
}

static bool read_value(const struct column *c, const struct value *v, void *record)
{
    char *member = (char *)record + c->offset;
    char *copy;
    int word;
    switch (c->form) {
    case COLUMN_NUMBER:
        if (c->limit && (v->number < 0 || v->number >= c->limit))
            return false;
        set_number(member, c->size, v->number);
        return true;
    case COLUMN_REAL:
        memcpy(member, &v->real, sizeof v->real);
        return true;
    case COLUMN_WORD:
        word = find_word(c, v->data);
        set_number(member, c->size, word);
        return word < c->limit;
    case COLUMN_CHARS:
        return (size_t)snprintf(member, c->size, "%s", v->data) < c->size;
    case COLUMN_TEXT:
        heap_set((char **)(void *)member, v->data);
        return true;
    case COLUMN_BORROWED:
        memcpy(member, &v->data, sizeof v->data);
        return true;
    case COLUMN_FAILURES:
        return read_failures(record, v->data);
    case COLUMN_PLACEMENT:
        return read_placement(record, v->data);
    case COLUMN_BYTES:
        if (v->len == c->size)
            memcpy(member, v->data, v->len);
        return v->len == c->size;
    case COLUMN_BLOB:
        copy = malloc(v->len + 1);
        PRE(copy != NULL);
        memcpy(copy, v->data, v->len);
        memcpy(member, &copy, sizeof copy);
        memcpy(member + c->size, &v->len, sizeof v->len);
        return true;
    }
    return false;
}

int row_read(const struct row *r, void *record, struct err *e)
{
    const struct row_table *t = &row_tables[r->kind];
    for (int i = 0; i < t->ncolumns; i++)
        if (!read_value(&t->columns[i], &r->values[i], record))
            return err_set(e, ERR_DATA, "the row of %s '%s' is damaged: %s", t->name,
                           r->values[0].data ? r->values[0].data : "", t->columns[i].name);
    return 0;
}

void record_init(enum row_kind kind, void *record)
{
    for (int i = 0; i < row_tables[kind].ncolumns; i++) {
        const struct column *c = &row_tables[kind].columns[i];
        if (c->form == COLUMN_TEXT)
            heap_set((char **)(void *)((char *)record + c->offset), "");
    }
}

void record_clear(enum row_kind kind, void *record)
{
    for (int i = 0; i < row_tables[kind].ncolumns; i++) {
        const struct column *c = &row_tables[kind].columns[i];
        char **member = (char **)(void *)((char *)record + c->offset);
        if (c->form == COLUMN_TEXT || c->form == COLUMN_BLOB || c->form == COLUMN_FAILURES ||
            c->form == COLUMN_PLACEMENT)
            free(*member);
    }
}

void event_message(const struct event_record *e, Weft__V1__Event *out)
{
    weft__v1__event__init(out);
    out->job = frame_text(e->job);
    out->seq = e->seq;
    out->t_ms = e->t_ms;
    out->state = (Weft__V1__JobState)e->state;
    out->kind = frame_text(event_word((int)e->kind));
    out->rank = e->rank;
    out->host = frame_text(e->host);
    out->step = e->step;
    out->text = frame_text(e->text);
}
