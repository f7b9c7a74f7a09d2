// SPDX-License-Identifier: Apache-2.0
// The readable trace: one line a message and a row. What is said every second is left out.
#include <stdio.h>

#include "tests/sim/check.h"

static const char *oneof_name(const ProtobufCMessage *m, int number)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(m->descriptor, (unsigned)number);
    return f ? f->name : "nothing";
}

static void say_frame(char *out, size_t size, const Weft__V1__RankFrame *m)
{
    const Weft__Rank__Frame *f = m->frame;
    long long step = -1;
    const char *text = "";
    if (f->body_case == WEFT__RANK__FRAME__BODY_SHARD_DONE)
        step = f->shard_done->step;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT)
        step = f->commit->step;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT_DONE)
        step = f->commit_done->step, text = f->commit_done->text;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_COMMITTED)
        step = f->committed->step;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_ABORTED)
        step = f->aborted->step, text = f->aborted->why;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_STEP_REPORT)
        step = f->step_report->step;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_BARRIER_DONE)
        text = f->barrier_done->failed;
    else if (f->body_case == WEFT__RANK__FRAME__BODY_LOST)
        text = f->lost->why;
    snprintf(out, size, "%s of %.4s.e%d.r%d step %lld %s", oneof_name(&f->base, (int)f->body_case),
             m->job, (int)m->epoch, m->rank, step, text);
}

static void say_register(char *out, size_t size, const Weft__V1__Register *m)
{
    int n = snprintf(out, size, "as %.8s", m->incarnation);
    for (size_t i = 0; i < m->n_attempts && n < (int)size; i++)
        n += snprintf(out + n, size - (size_t)n, " with %.4s.e%d%s (%d ranks)", m->attempts[i]->job,
                      (int)m->attempts[i]->epoch, m->attempts[i]->reaped ? " reaped" : "",
                      (int)m->attempts[i]->n_ranks);
}

void trace_up(struct world *w, uint64_t conn, const Weft__V1__Up *m)
{
    char text[500] = "";
    const char *host = "?";
    for (const struct conn *c = w->conns; c; c = c->next)
        host = c->id == conn ? c->host->name : host;
    if (m->body_case == WEFT__V1__UP__BODY_HEARTBEAT || m->body_case == WEFT__V1__UP__BODY_PROGRESS)
        return;
    if (m->body_case == WEFT__V1__UP__BODY_FRAME)
        say_frame(text, sizeof text, m->frame);
    else if (m->body_case == WEFT__V1__UP__BODY_REGISTER)
        say_register(text, sizeof text, m->register_);
    else if (m->body_case == WEFT__V1__UP__BODY_REAPED)
        snprintf(text, sizeof text, "%.4s.e%d", m->reaped->job, (int)m->reaped->epoch);
    else if (m->body_case == WEFT__V1__UP__BODY_RANK_END)
        snprintf(text, sizeof text, "%.4s.e%d.r%d code %d %s", m->rank_end->job,
                 (int)m->rank_end->epoch, m->rank_end->rank, m->rank_end->code, m->rank_end->why);
    sim_say(&w->sim, "%s -> boss (%d): %s %s", host, (int)conn,
            oneof_name(&m->base, (int)m->body_case), text);
}

void trace_down(struct host *h, const Weft__V1__Down *m)
{
    char text[500] = "";
    if (m->body_case == WEFT__V1__DOWN__BODY_ACK)
        return;
    if (m->body_case == WEFT__V1__DOWN__BODY_FRAME)
        say_frame(text, sizeof text, m->frame);
    else if (m->body_case == WEFT__V1__DOWN__BODY_START)
        snprintf(text, sizeof text, "%.4s.e%d, %d ranks, restores '%s'", m->start->job,
                 (int)m->start->epoch, (int)m->start->n_ranks, m->start->assign->restore);
    else if (m->body_case == WEFT__V1__DOWN__BODY_STOP)
        snprintf(text, sizeof text, "%.4s.e%d %s", m->stop->job, (int)m->stop->epoch,
                 m->stop->reason);
    else if (m->body_case == WEFT__V1__DOWN__BODY_SYNC)
        snprintf(text, sizeof text, "%.4s.e%d", m->sync->job, (int)m->sync->epoch);
    else if (m->body_case == WEFT__V1__DOWN__BODY_STORAGE)
        snprintf(text, sizeof text, "%d of %.4s.e%d", m->storage->op, m->storage->job,
                 (int)m->storage->epoch);
    else if (m->body_case == WEFT__V1__DOWN__BODY_FENCED)
        snprintf(text, sizeof text, "%s", m->fenced->why);
    sim_say(&h->w->sim, "boss -> %s: %s %s", h->name, oneof_name(&m->base, (int)m->body_case),
            text);
}

void trace_row(struct world *w, const Weft__Rows__Write *row)
{
    struct sim *s = &w->sim;
    if (row->row_case == WEFT__ROWS__WRITE__ROW_EVENT)
        sim_say(s, "boss: job %.4s: %s: %s", row->event->job, row->event->kind, row->event->text);
    else if (row->row_case == WEFT__ROWS__WRITE__ROW_CHECKPOINT)
        sim_say(s, "boss: checkpoint %d.e%d of %.4s is %d%s", (int)row->checkpoint->step,
                (int)row->checkpoint->epoch, row->checkpoint->job, row->checkpoint->state,
                row->erase ? ", erased" : "");
    else if (row->row_case == WEFT__ROWS__WRITE__ROW_JOB)
        sim_say(s, "boss: job %.4s is in state %d, goal %d, epoch %d%s", row->job->id,
                row->job->state, row->job->goal, (int)row->job->epoch,
                row->job->fenced ? ", fenced" : "");
    else if (row->row_case == WEFT__ROWS__WRITE__ROW_FENCED)
        sim_say(s, "boss: incarnation %.8s of %.8s is fenced: %s", row->fenced->incarnation,
                row->fenced->host, row->fenced->why);
}
