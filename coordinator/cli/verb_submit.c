// SPDX-License-Identifier: Apache-2.0
// weft submit: gives one job to the coordinator, once, however often the command is repeated
// (request.h).
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/hash.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/message_json.h"
#include "coordinator/cli/request.h"
#include "coordinator/cli/resolved_job.h"

static void print_reply(const Weft__V1__SubmitReply *reply, const struct kept_request *r, bool json)
{
    struct buf out = {0};
    struct json_out w;
    if (json) {
        json_print_start(&w, &out, true);
        json_members(&w, &reply->base);
        json_str(&w, "request", r->id);
        json_print_end(&w);
    } else {
        buf_printf(&out, "%s  %s\n", reply->job, reply->name);
        if (isatty(1))
            buf_printf(&out, "weft watch %.8s follows it\n", reply->job);
    }
    put_out(&out);
    if (*reply->notice)
        plain_error("weft submit: %s", reply->notice);
}

// Chooses the request id, and shows a person at a terminal how to repeat the request.
static int choose_request(struct kept_request *r, const struct verb *v, const struct args *a,
                          const char *address, const char *resolved)
{
    struct err e = {0};
    if (a->request) {
        *r = (struct kept_request){.fd = -1};
        if (!hex_is(a->request, ID_LEN - 1))
            return usage(v, "--request takes 32 hex digits, 0-9 a-f");
        memcpy(r->id, a->request, ID_LEN);
        return CLIENT_OK;
    }
    if (request_begin(r, address, resolved, &e))
        plain_printf(
            stderr,
            "weft submit: the request is not remembered: %s\n  to do: should this be killed, "
            "repeat it with --request %s\n",
            e.text, r->id);
    else if (r->again)
        plain_error("weft submit: an earlier submit of this job did not hear its answer; this "
                    "repeats it (request %s)",
                    r->id);
    else if (isatty(2))
        plain_error("request %s", r->id);
    return CLIENT_OK;
}

static int send_submit(struct cli_link *l, const char *resolved, struct kept_request *r,
                       const struct args *a)
{
    V1_NEW(SubmitRequest, submit_request, req);
    ProtobufCMessage *reply;
    req.request_id = r->id;
    req.resolved = frame_text(resolved);
    req.continues = frame_text(a->continues);
    req.from_step = a->from_step;
    req.goes_back = a->from_step >= 0;
    int rc = cli_link_ask(l, LINK_SUBMIT, &req.base, &reply);
    if (!rc) {
        print_reply((const Weft__V1__SubmitReply *)(const void *)reply, r, a->json);
        cli_link_free(reply);
    }
    if (rc != CLIENT_AWAY) // a refusal is an answer too
        request_end(r);
    return rc;
}

int verb_submit(const struct verb *v, const struct args *a)
{
    struct arena arena = {0};
    struct buf resolved = {0}, text = {0};
    struct cli_link l = {0};
    struct kept_request r = {.fd = -1};
    struct job job;
    if (a->from_step >= 0 && !a->continues)
        return usage(v, "--from-step is of a job that continues: name it with --continue");
    int rc = resolve_job(a, &arena, &job);
    if (!rc && job.train.until)
        rc = usage(v, "train.until is for `weft run`: a service stops no job by the clock");
    if (!rc)
        rc = cli_link_open(&l, v, a);
    if (!rc)
        job_print(&job, &resolved);
    // A job file submitted as a new job, and the same one submitted to continue another, are two
    // requests.
    buf_printf(&text, "%s%s%s", buf_str(&resolved), a->continues ? "continues " : "",
               a->continues ? a->continues : "");
    if (a->from_step >= 0)
        buf_printf(&text, " from step %lld", (long long)a->from_step);
    if (!rc)
        rc = choose_request(&r, v, a, l.address, buf_str(&text));
    buf_clear(&text);
    if (!rc)
        rc = send_submit(&l, buf_str(&resolved), &r, a);
    cli_link_close(&l);
    buf_clear(&resolved);
    arena_clear(&arena);
    return rc;
}
