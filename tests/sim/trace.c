// SPDX-License-Identifier: Apache-2.0
// The readable trace: one line a message and a row, in columns: when, who, to whom, what and why.
// What is said every second is left out.
#include <stdio.h>
#include <string.h>

#include "common/ckpt/commit.h"
#include "coordinator/decide/words.h"
#include "tests/sim/sim_check.h"

static const char *oneof_name(const ProtobufCMessage *m, int number)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(m->descriptor, (unsigned)number);
    return f ? f->name : "nothing";
}

const char *storage_word(Weft__V1__StorageOp op)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&weft__v1__storage_op__descriptor, (int)op);
    return v ? v->name + strlen("STORAGE_") : "?";
}

// Whether a field says why, in words; `why` is a frame's, `failed` an answer's, and so on.
static bool is_reason(const char *field)
{
    static const char *const reasons[] = {"why", "failed", "reason", "text"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (!strcmp(field, reasons[i]))
            return true;
    return false;
}

// Fields of a frame that tell one from another: numbers and short texts, whatever frame it is. What
// is 0 or empty says nothing, and how long somebody waits, or how fast a step was, is left out.
static int say_field(char *out, size_t size, const ProtobufCFieldDescriptor *f, const void *at)
{
    enum { SHORT = 40 };
    long long number = 0;
    if (f->label == PROTOBUF_C_LABEL_REPEATED || strstr(f->name, "_ns"))
        return 0;
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)at;
        bool said = *text && strlen(text) <= SHORT && !strchr(text, '\n');
        return said ? snprintf(out, size, " %s=%s", f->name, text) : 0;
    }
    case PROTOBUF_C_TYPE_INT32:
        number = *(const int32_t *)at;
        break;
    case PROTOBUF_C_TYPE_UINT32:
        number = *(const uint32_t *)at;
        break;
    case PROTOBUF_C_TYPE_INT64:
        number = *(const int64_t *)at;
        break;
    case PROTOBUF_C_TYPE_UINT64:
        number = (long long)*(const uint64_t *)at;
        break;
    case PROTOBUF_C_TYPE_BOOL:
        number = *(const protobuf_c_boolean *)at;
        break;
    default:
        return 0;
    }
    return number ? snprintf(out, size, " %s=%lld", f->name, number) : 0;
}

// "barrier_done name=save seq=2"; the reason is returned.
static const char *say_frame(char *out, size_t size, const Weft__Rank__Frame *f)
{
    const char *why = "";
    const ProtobufCFieldDescriptor *body =
        protobuf_c_message_descriptor_get_field(f->base.descriptor, (unsigned)f->body_case);
    int n = snprintf(out, size, "%s", oneof_name(&f->base, (int)f->body_case));
    if (!body)
        return why;
    const ProtobufCMessage *m =
        *(ProtobufCMessage *const *)(const void *)((const char *)f + body->offset);
    for (unsigned i = 0; i < m->descriptor->n_fields && n < (int)size; i++) {
        const ProtobufCFieldDescriptor *k = &m->descriptor->fields[i];
        const void *at = (const char *)m + k->offset;
        if (k->type == PROTOBUF_C_TYPE_STRING && is_reason(k->name))
            why = *(char *const *)at;
        else
            n += say_field(out + n, size - (size_t)n, k, at);
    }
    return why;
}

static const char *say_rank_frame(char *out, size_t size, const Weft__V1__RankFrame *m)
{
    char what[300];
    const char *why = say_frame(what, sizeof what, m->frame);
    snprintf(out, size, "%s of %.4s.a%d.r%d", what, m->job, (int)m->attempt, m->rank);
    return why;
}

void trace_leader(struct world *w, int rank, const Weft__Rank__Frame *f)
{
    char what[300], to[20] = "all";
    const char *why = say_frame(what, sizeof what, f);
    if (rank >= 0)
        snprintf(to, sizeof to, "r%d", rank);
    sim_say_message(&w->sim, "leader", to, what, why);
}

void trace_rank(const struct rank *r, const Weft__Rank__Frame *f)
{
    char what[300];
    const char *why = say_frame(what, sizeof what, f);
    sim_say_message(&r->w->sim, r->proc.who, "leader", what, why);
}

static void say_register(char *out, size_t size, const Weft__V1__Register *m)
{
    int n = snprintf(out, size, "as %.8s", m->incarnation);
    for (size_t i = 0; i < m->n_attempts && n < (int)size; i++)
        n += snprintf(out + n, size - (size_t)n, " with %.4s.a%d%s (%d ranks)", m->attempts[i]->job,
                      (int)m->attempts[i]->attempt, m->attempts[i]->reaped ? " reaped" : "",
                      (int)m->attempts[i]->n_ranks);
}

void trace_up(struct world *w, uint64_t conn, const Weft__V1__Up *m)
{
    char text[500] = "", what[600];
    const char *host = "?", *why = "";
    for (const struct conn *c = w->conns; c; c = c->next)
        host = c->id == conn ? c->host->name : host;
    if (m->body_case == WEFT__V1__UP__BODY_HEARTBEAT || m->body_case == WEFT__V1__UP__BODY_PROGRESS)
        return;
    if (m->body_case == WEFT__V1__UP__BODY_FRAME)
        why = say_rank_frame(text, sizeof text, m->frame);
    else if (m->body_case == WEFT__V1__UP__BODY_REGISTER)
        say_register(text, sizeof text, m->register_);
    else if (m->body_case == WEFT__V1__UP__BODY_REAPED)
        snprintf(text, sizeof text, "%.4s.a%d", m->reaped->job, (int)m->reaped->attempt);
    else if (m->body_case == WEFT__V1__UP__BODY_RANK_END)
        snprintf(text, sizeof text, "%.4s.a%d.r%d code %d", m->rank_end->job,
                 (int)m->rank_end->attempt, m->rank_end->rank, m->rank_end->code),
            why = m->rank_end->why;
    else if (m->body_case == WEFT__V1__UP__BODY_STORAGE)
        snprintf(text, sizeof text, "%s of %.4s.a%d %s", storage_word(m->storage->op),
                 m->storage->job, (int)m->storage->attempt, m->storage->ok ? "done" : "failed"),
            why = m->storage->why;
    snprintf(what, sizeof what, "%s%s%s", oneof_name(&m->base, (int)m->body_case), *text ? " " : "",
             text);
    sim_say_message(&w->sim, host, "coordinator", what, why);
}

void trace_down(struct host *h, const Weft__V1__Down *m)
{
    char text[500] = "", what[600];
    const char *why = "";
    if (m->body_case == WEFT__V1__DOWN__BODY_ACK)
        return;
    if (m->body_case == WEFT__V1__DOWN__BODY_FRAME)
        why = say_rank_frame(text, sizeof text, m->frame);
    else if (m->body_case == WEFT__V1__DOWN__BODY_START)
        snprintf(text, sizeof text, "%.4s.a%d, %d ranks, restores '%s'", m->start->job,
                 (int)m->start->attempt, (int)m->start->n_ranks, m->start->assign->restore);
    else if (m->body_case == WEFT__V1__DOWN__BODY_STOP)
        snprintf(text, sizeof text, "%.4s.a%d", m->stop->job, (int)m->stop->attempt),
            why = m->stop->reason;
    else if (m->body_case == WEFT__V1__DOWN__BODY_SYNC)
        snprintf(text, sizeof text, "%.4s.a%d", m->sync->job, (int)m->sync->attempt);
    else if (m->body_case == WEFT__V1__DOWN__BODY_STORAGE)
        snprintf(text, sizeof text, "%s of %.4s.a%d", storage_word(m->storage->op), m->storage->job,
                 (int)m->storage->attempt);
    else if (m->body_case == WEFT__V1__DOWN__BODY_FENCED)
        why = m->fenced->why;
    snprintf(what, sizeof what, "%s%s%s", oneof_name(&m->base, (int)m->body_case), *text ? " " : "",
             text);
    sim_say_message(&h->w->sim, "coordinator", h->name, what, why);
}

void trace_row(struct world *w, const struct stored_row *r)
{
    struct sim *s = &w->sim;
    if (r->row.kind == ROW_EVENT)
        sim_say(s, "coordinator", "job %.4s: %s: %s", r->event->job,
                event_word((int)r->event->kind), r->event->text);
    else if (r->row.kind == ROW_CHECKPOINT)
        sim_say(s, "coordinator", "checkpoint %d.a%d of %.4s is %s%s", (int)r->checkpoint->id.step,
                (int)r->checkpoint->id.attempt, r->checkpoint->job,
                commit_state_name(r->checkpoint->state), r->row.erase ? ", erased" : "");
    else if (r->row.kind == ROW_JOB)
        sim_say(s, "coordinator", "job %.4s is %s, goal %s, attempt %d%s", r->job->id,
                job_state_word(r->job->state), job_state_word(r->job->goal), (int)r->job->attempt,
                r->job->fenced ? ", fenced" : "");
    else if (r->row.kind == ROW_FENCED)
        sim_say(s, "coordinator", "incarnation %.8s of %.8s is fenced: %s",
                row_value(&r->row, "incarnation")->data, row_value(&r->row, "host")->data,
                row_value(&r->row, "why")->data);
}
