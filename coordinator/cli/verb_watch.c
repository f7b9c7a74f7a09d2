// SPDX-License-Identifier: Apache-2.0
// weft watch: a job's progress until it ends. If the coordinator goes away this waits for it; the
// job continues meanwhile.
#include <stdio.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/progress.h"

// Handles one message or failure. Returns an exit code, or -1 to continue.
static int take_watch_event(struct cli_link_stream *s, Weft__V1__JobRequest *req,
                            struct progress *p)
{
    ProtobufCMessage *m;
    enum rpc_code code = RPC_OK;
    char text[RPC_TEXT_MAX] = "";
    switch (cli_link_stream_next(s, &req->base, false, progress_pause_ns(p), &m, &code, text)) {
    case LINK_NOTHING:
        progress_turn(p);
        return -1;
    case LINK_MESSAGE:
        progress_update(p, (const Weft__V1__WatchUpdate *)(const void *)m);
        cli_link_free(m);
        if (p->event) // what is written while the stream is away is shown when it is back
            req->from_event = p->event + 1;
        if (*p->job) // a name may mean another job later, its id never does
            req->job = p->job;
        return job_ended(p->state) >= 0 ? progress_end(p) : -1;
    case LINK_AWAY:
        progress_say(
            p, code == RPC_RESOURCE_EXHAUSTED
                   ? "the coordinator cut this off, which stood still; asking again"
                   : "the coordinator is away; the job continues without it, waiting for both");
        return -1;
    case LINK_END:
        if (job_ended(p->state) < 0) { // a coordinator that stops ends the stream in order
            s->again_ns = clock_mono_ns() + CLOCK_S / 2;
            return -1;
        }
        return progress_end(p);
    case LINK_FAILED:
        break;
    }
    return cli_link_explain(s->link, code, text);
}

// A run that is not under way: nothing more will come.
static int show_stored(struct cli_link *l, const Weft__V1__JobRequest *req, struct progress *p)
{
    ProtobufCMessage *m;
    V1_NEW(WatchUpdate, watch_update, update);
    int rc = cli_link_ask(l, LINK_STATUS, &req->base, &m);
    if (rc)
        return rc;
    p->left = true;
    update.status = (Weft__V1__JobStatus *)(void *)m;
    progress_update(p, &update);
    cli_link_free(m);
    rc = progress_end(p);
    return rc < 0 ? CLIENT_OK : rc;
}

int verb_watch(const struct verb *v, const struct args *a)
{
    struct cli_link l = {0};
    struct cli_link_stream s = {.link = &l, .method = LINK_WATCH};
    V1_NEW(JobRequest, job_request, req);
    struct progress p;
    progress_init(&p, a->json);
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    p.link = &l;
    req.job = arena_strdup(&l.arena, a->pos[0]);
    if (!l.stored)
        cli_link_stream_open(&s, &req.base);
    do
        rc = l.stored ? show_stored(&l, &req, &p) : take_watch_event(&s, &req, &p);
    while (rc < 0 && !ferror(stdout));
    progress_clear(&p);
    cli_link_close(&l);
    return rc < 0 ? CLIENT_FAILED : rc;
}
