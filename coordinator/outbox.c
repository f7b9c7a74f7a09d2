// SPDX-License-Identifier: Apache-2.0
// How rows and actions leave a step, and where randomness comes from; see coord_state.h.
//
// Whatever leaves is copied into the arena of the step's coord_out: a batch of steps may change or
// free what a message was made from before it is sent.
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/json.h"
#include "coordinator/coord_state.h"

static void *from_arena(void *arena, size_t size)
{
    return arena_alloc(arena, size);
}

static void to_arena(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

ProtobufCMessage *msg_dup(struct arena *a, const ProtobufCMessage *m)
{
    ProtobufCAllocator from = {from_arena, to_arena, a};
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = arena_alloc(a, len + 1);
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, &from, len, bytes);
    PRE(copy != NULL);
    return copy;
}

void *msg_heap(const ProtobufCMessage *m)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    PRE(bytes != NULL);
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, len, bytes);
    PRE(copy != NULL);
    free(bytes);
    return copy;
}

void out_row(struct coord *c, Weft__Rows__Write__RowCase which, const ProtobufCMessage *row,
             bool erase)
{
    struct coord_out *o = c->out;
    Weft__Rows__Write *w = arena_new(o->arena, Weft__Rows__Write);
    weft__rows__write__init(w);
    w->row_case = which;
    w->job = (Weft__Rows__Job *)(void *)msg_dup(o->arena, row); // all members are one pointer
    w->erase = erase;
    o->writes = arena_grow(o->arena, o->writes, sizeof *o->writes, o->nwrites, &o->cap_writes);
    o->writes[o->nwrites++] = w;
}

static struct coord_action *add(struct coord *c, enum coord_action_kind kind)
{
    struct coord_out *o = c->out;
    o->actions = arena_grow(o->arena, o->actions, sizeof *o->actions, o->nactions, &o->cap_actions);
    struct coord_action *a = &o->actions[o->nactions++];
    *a = (struct coord_action){.kind = kind};
    return a;
}

void out_down(struct coord *c, uint64_t conn, const Weft__V1__Down *down)
{
    if (!conn)
        return;
    struct coord_action *a = add(c, COORD_SEND);
    a->conn = conn;
    a->down = (Weft__V1__Down *)(void *)msg_dup(c->out->arena, &down->base);
}

void out_drop(struct coord *c, uint64_t conn, int code, const char *text)
{
    struct coord_action *a = add(c, COORD_DROP);
    a->conn = conn;
    a->code = code;
    a->text = arena_strdup(c->out->arena, text);
}

void out_reply(struct coord *c, uint64_t call, const ProtobufCMessage *reply)
{
    struct coord_action *a = add(c, COORD_REPLY);
    a->call = call;
    a->reply = msg_dup(c->out->arena, reply);
}

void out_refuse(struct coord *c, uint64_t call, int code, const char *text)
{
    struct coord_action *a = add(c, COORD_REFUSE);
    a->call = call;
    a->code = code;
    a->text = arena_strdup(c->out->arena, text);
}

void out_publish(struct coord *c, const char *job, const Weft__V1__WatchUpdate *update)
{
    struct coord_action *a = add(c, COORD_PUBLISH);
    a->job = arena_strdup(c->out->arena, job);
    a->update = (Weft__V1__WatchUpdate *)(void *)msg_dup(c->out->arena, &update->base);
}

// SHA-256(seed, number of the draw).
void coord_random(struct coord *c, unsigned char out[32])
{
    struct sha256 s;
    unsigned char n[8];
    c->draws++;
    for (int i = 0; i < 8; i++)
        n[i] = (unsigned char)(c->draws >> (8 * i));
    sha256_init(&s);
    sha256_update(&s, c->config.seed, sizeof c->config.seed);
    sha256_update(&s, n, sizeof n);
    sha256_final(&s, out);
}

void coord_new_id(struct coord *c, char out[ID_LEN])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char bytes[32];
    coord_random(c, bytes);
    for (int i = 0; i < 16; i++) {
        out[2 * i] = hex[bytes[i] >> 4];
        out[2 * i + 1] = hex[bytes[i] & 15];
    }
    out[32] = 0;
}

void text_plain(char *s)
{
    for (size_t left = strlen(s), n; left; s += n, left -= n) {
        const unsigned char *u = (const unsigned char *)s;
        n = json_utf8_len(s, left);
        bool steers = (*u < ' ' && *u != '\n' && *u != '\t') || *u == 0x7f ||
                      (n == 2 && *u == 0xc2 && u[1] < 0xa0);
        if (n && !steers)
            continue;
        n = 1; // what follows it is looked at by itself
        *s = '?';
    }
}

void text_set(char **field, const char *s)
{
    char *old = *field;
    const char *empty = protobuf_c_empty_string;
    if (s && s[0]) {
        *field = strdup(s);
        PRE(*field != NULL);
    } else {
        *field = frame_text(empty);
    }
    if (old && old != empty)
        free(old);
}
