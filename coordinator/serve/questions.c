// SPDX-License-Identifier: Apache-2.0
// What readers are answered; see questions.h.
#include "coordinator/serve/questions.h"

#include <string.h>

#include "common/base/clock.h"

enum { EVENT_ROOM = 256 }; // of an event without its text
enum { JOBS_PAGE = 1000 }; // of a reply

// Events carry ranks' last lines: a long history must still fit into one message.
static void keep_newest(Weft__V1__WhyReply *r)
{
    size_t size = 0, n = r->n_events;
    if (!n)
        return;
    while (n > 0 && (size += strlen(r->events[n - 1]->text) + EVENT_ROOM) < RPC_MESSAGE_MAX / 2)
        n--;
    r->events += n;
    r->n_events -= n;
}

static const ProtobufCMessage *answer_why(const struct coord *c, struct db *db, const char *job,
                                          struct arena *a, struct err *e)
{
    Weft__V1__WhyReply *r = coord_why(c, job, clock_mono_ns(), a, e);
    if (!r || db_events(db, r->status->job, 0, a, &r->events, &r->n_events, e))
        return NULL;
    keep_newest(r);
    r->trimmed = r->n_events && r->events[0]->seq > 1;
    return &r->base;
}

const ProtobufCMessage *answer_question(const struct coord *c, struct db *db,
                                        const struct rpc_method *m, const ProtobufCMessage *request,
                                        struct arena *a, struct err *e)
{
    const char *name = strrchr(m->path, '/') + 1;
    if (strcmp(name, "Jobs") == 0) {
        const Weft__V1__JobsRequest *ask = (const Weft__V1__JobsRequest *)(const void *)request;
        return &coord_jobs(c, ask->all, ask->after, JOBS_PAGE, a)->base;
    }
    if (strcmp(name, "Workers") == 0)
        return &coord_workers(c, clock_mono_ns(), a)->base;
    PRE(request->descriptor == &weft__v1__job_request__descriptor);
    const char *job = ((const Weft__V1__JobRequest *)(const void *)request)->job;
    if (strcmp(name, "Why") == 0)
        return answer_why(c, db, job, a, e);
    if (strcmp(name, "Status") == 0) {
        Weft__V1__JobStatus *status = coord_status(c, job, a, e);
        return status ? &status->base : NULL;
    }
    PRE(strcmp(name, "Checkpoints") == 0);
    Weft__V1__CheckpointsReply *list = coord_checkpoints(c, job, a, e);
    return list ? &list->base : NULL;
}
