// SPDX-License-Identifier: Apache-2.0
// cancel, hold, preempt, resume, adopt, cordon, uncordon and drain: a call for each target, over one
// connection. The verb's row says which it is.
#include "common/attempt/frame.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/message_json.h"
#include "coordinator/cli/request.h"

static void print_reply(const struct verb *v, const Weft__V1__ActReply *reply, const struct args *a)
{
    struct buf out = {0};
    struct json_out w;
    if (a->json) {
        json_print_start(&w, &out, a->npos == 1); // of several a line each
        json_str(&w, "verb", v->name);
        json_members(&w, &reply->base);
        json_print_end(&w);
    } else {
        struct buf before = {0};
        buf_printf(&before, "%s: ", reply->target);
        print_lines(&out, buf_str(&before), reply->text);
        buf_clear(&before);
    }
    put_out(&out);
}

static int act_on(const struct verb *v, const struct args *a, struct cli_link *l,
                  const char *target)
{
    V1_NEW(ActRequest, act_request, req);
    char id[ID_LEN];
    ProtobufCMessage *reply;
    request_random(id); // such a verb may be repeated by hand without harm, so its id is not kept
    req.request_id = id;
    req.verb = (Weft__V1__Verb)v->act;
    req.target = frame_text(target);
    req.from_step = a->from_step;
    req.goes_back = a->from_step >= 0;
    req.why = frame_text(a->why);
    int rc = cli_link_ask(l, LINK_ACT, &req.base, &reply);
    if (rc)
        return rc;
    print_reply(v, (const Weft__V1__ActReply *)(const void *)reply, a);
    cli_link_free(reply);
    return CLIENT_OK;
}

// What is refused for one does not keep it from the others. The code is that of the first refusal,
// or says that the coordinator went away: then the rest was not asked.
int verb_act(const struct verb *v, const struct args *a)
{
    struct cli_link l = {0};
    int rc = cli_link_open(&l, v, a), first = CLIENT_OK;
    if (rc)
        return rc;
    for (int i = 0; i < a->npos && !rc; i++) {
        rc = act_on(v, a, &l, a->pos[i]);
        first = first && rc != CLIENT_AWAY ? first : rc;
        rc = rc == CLIENT_AWAY ? rc : CLIENT_OK;
        if (rc && i + 1 < a->npos)
            plain_error("weft %s: not asked: %s%s", v->name, a->pos[i + 1],
                        i + 2 < a->npos ? " and those after it" : "");
    }
    cli_link_close(&l);
    return first;
}
