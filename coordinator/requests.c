// SPDX-License-Identifier: Apache-2.0
// Request ids with their answers; see requests.h.
#include "coordinator/requests.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/protocol_rule.h"

enum { DIGEST = 32, REQUEST_ID_MAX = 128 };
static const int64_t keep_ms = 24LL * 3600 * 1000;

struct request {
    struct list link;
    Weft__Rows__Request *row;
};

static void digest_of(const ProtobufCMessage *m, unsigned char out[DIGEST])
{
    struct sha256 s;
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    PRE(bytes != NULL);
    protobuf_c_message_pack(m, bytes);
    sha256_init(&s);
    sha256_update(&s, bytes, len);
    sha256_final(&s, out);
    free(bytes);
}

void request_load(struct coord *c, const Weft__Rows__Request *row)
{
    if (map_get(&c->requests, row->id))
        return;
    struct request *q = calloc(1, sizeof *q);
    PRE(q != NULL);
    q->row = msg_heap(&row->base);
    struct list *at = c->answered.prev;
    while (at != &c->answered && list_entry(at, struct request, link)->row->t_ms > row->t_ms)
        at = at->prev;
    list_append(at->next, &q->link);
    map_put(&c->requests, row->id, q);
}

static void repeat(struct coord *c, uint64_t call, const struct request *q,
                   const ProtobufCMessageDescriptor *reply)
{
    ProtobufCMessage *m =
        protobuf_c_message_unpack(reply, NULL, q->row->reply.len, q->row->reply.data);
    if (!m) {
        out_refuse(c, call, CODE_INVALID, "this request id was used for another kind of call");
        return;
    }
    out_reply(c, call, m);
    protobuf_c_message_free_unpacked(m, NULL);
}

bool request_known(struct coord *c, uint64_t call, const char *id, const ProtobufCMessage *request,
                   const ProtobufCMessageDescriptor *reply)
{
    unsigned char digest[DIGEST];
    if (!id[0] || strlen(id) > REQUEST_ID_MAX) {
        out_refuse(c, call, CODE_INVALID, "a request id has 1 to 128 characters");
        return true;
    }
    const struct request *q = WEFT_RULE(request_ids) ? map_get(&c->requests, id) : NULL;
    if (!q)
        return false;
    digest_of(request, digest);
    if (q->row->digest.len != DIGEST || memcmp(q->row->digest.data, digest, DIGEST) != 0)
        out_refuse(c, call, CODE_INVALID, "this request id was used for another call");
    else
        repeat(c, call, q, reply);
    return true;
}

void request_answer(struct coord *c, uint64_t call, const char *id, const ProtobufCMessage *request,
                    const ProtobufCMessage *reply)
{
    unsigned char digest[DIGEST];
    ROW_NEW(Request, request, row);
    digest_of(request, digest);
    row.id = frame_text(id);
    row.digest.data = digest;
    row.digest.len = DIGEST;
    row.reply.len = protobuf_c_message_get_packed_size(reply);
    row.reply.data = arena_alloc(c->out->arena, row.reply.len + 1);
    protobuf_c_message_pack(reply, row.reply.data);
    row.t_ms = c->wall_ms;
    OUT_ROW(c, REQUEST, &row);
    request_load(c, &row);
    out_reply(c, call, reply);
}

static void forget(struct coord *c, struct request *q)
{
    list_remove(&q->link);
    map_remove(&c->requests, q->row->id);
    weft__rows__request__free_unpacked(q->row, NULL);
    free(q);
}

void requests_trim(struct coord *c)
{
    list_for_each (it, &c->answered) {
        struct request *q = list_entry(it, struct request, link);
        if (c->wall_ms - q->row->t_ms < keep_ms)
            return;
        ROW_NEW(Request, request, row);
        row.id = q->row->id;
        OUT_ERASE(c, REQUEST, &row);
        forget(c, q);
    }
}

void requests_free(struct coord *c)
{
    list_for_each (it, &c->answered)
        forget(c, list_entry(it, struct request, link));
    map_clear(&c->requests);
}
