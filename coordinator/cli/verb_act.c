// SPDX-License-Identifier: Apache-2.0
// cancel, hold, preempt, resume, adopt, cordon, uncordon and drain: one call, which the verb's row tells
// apart.
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/request.h"

static void print_reply(const struct verb *v, const Weft__V1__ActReply *reply, bool json)
{
    struct buf out = {0};
    struct json_out w;
    if (json) {
        json_print_start(&w, &out, true);
        json_str(&w, "verb", v->name);
        json_str(&w, "target", reply->target);
        json_text(&w, "text", reply->text);
        json_print_end(&w);
    } else {
        struct buf before = {0};
        buf_printf(&before, "%s: ", reply->target);
        print_lines(&out, buf_str(&before), reply->text);
        buf_clear(&before);
    }
    put_out(&out);
}

int verb_act(const struct verb *v, const struct args *a)
{
    Weft__V1__ActRequest req;
    char id[ID_LEN];
    struct cli_link l = {0};
    ProtobufCMessage *reply;
    weft__v1__act_request__init(&req);
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    request_random(id); // such a verb may be repeated by hand without harm, so its id is not kept
    req.request_id = id;
    req.verb = (Weft__V1__Verb)v->act;
    req.target = arena_strdup(&l.arena, a->pos[0]);
    req.why = arena_strdup(&l.arena, a->why ? a->why : "");
    rc = cli_link_ask(&l, LINK_ACT, &req.base, &reply);
    if (!rc) {
        print_reply(v, (const Weft__V1__ActReply *)(const void *)reply, a->json);
        cli_link_free(reply);
    }
    cli_link_close(&l);
    return rc;
}
