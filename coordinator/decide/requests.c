// SPDX-License-Identifier: Apache-2.0
// Request ids with their answers; see requests.h.
#include "coordinator/decide/requests.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/protocol_rule.h"
#include "coordinator/decide/outbox.h"

enum { REQUEST_ID_MAX = 128 };
static const int64_t keep_ms = 24LL * 3600 * 1000;

static void digest_call(const ProtobufCMessage *m, unsigned char out[REQUEST_DIGEST])
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

// The list is ordered by the time of the answer. Takes q.
static void keep_request(struct coord *c, struct request *q)
{
    struct list *at = c->answered.prev;
    while (at != &c->answered && list_entry(at, struct request, link)->t_ms > q->t_ms)
        at = at->prev;
    list_append(at->next, &q->link);
    map_put(&c->requests, q->id, q);
}

int request_load(struct coord *c, const struct row *row, struct err *e)
{
    struct request *q = heap_alloc(sizeof *q);
    int rc = row_read(row, q, e);
    keep_request(c, q);
    return rc;
}

static void repeat_answer(struct coord *c, uint64_t call, const struct request *q,
                          const ProtobufCMessageDescriptor *reply)
{
    ProtobufCMessage *m = protobuf_c_message_unpack(reply, NULL, q->reply_len, q->reply);
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
    unsigned char digest[REQUEST_DIGEST];
    if (!id[0] || strlen(id) > REQUEST_ID_MAX) {
        out_refuse(c, call, CODE_INVALID, "a request id has 1 to 128 characters");
        return true;
    }
    const struct request *q = WEFT_RULE(request_ids) ? map_get(&c->requests, id) : NULL;
    if (!q)
        return false;
    digest_call(request, digest);
    if (memcmp(q->digest, digest, REQUEST_DIGEST) != 0)
        out_refuse(c, call, CODE_INVALID,
                   "this request id was used for another call: take another");
    else
        repeat_answer(c, call, q, reply);
    return true;
}

void request_answer(struct coord *c, uint64_t call, const char *id, const ProtobufCMessage *request,
                    const ProtobufCMessage *reply)
{
    struct request *q = heap_alloc(sizeof *q);
    digest_call(request, q->digest);
    q->id = heap_strdup(id);
    q->reply_len = protobuf_c_message_get_packed_size(reply);
    q->reply = malloc(q->reply_len + 1);
    PRE(q->reply != NULL);
    protobuf_c_message_pack(reply, q->reply);
    q->t_ms = c->wall_ms;
    keep_request(c, q);
    out_row(c, ROW_REQUEST, q);
    out_reply(c, call, reply);
}

static void forget_request(struct coord *c, struct request *q)
{
    list_remove(&q->link);
    map_remove(&c->requests, q->id);
    free(q->id);
    free(q->reply);
    free(q);
}

void requests_trim(struct coord *c)
{
    list_for_each (it, &c->answered) {
        struct request *q = list_entry(it, struct request, link);
        if ((int)c->requests.n <= c->config.keep_requests && c->wall_ms - q->t_ms < keep_ms)
            return;
        out_erase(c, ROW_REQUEST, q);
        forget_request(c, q);
    }
}

void requests_free(struct coord *c)
{
    list_for_each (it, &c->answered)
        forget_request(c, list_entry(it, struct request, link));
    map_clear(&c->requests);
}
