// SPDX-License-Identifier: Apache-2.0
// How rows and actions leave a step; see outbox.h.
#include "coordinator/decide/outbox.h"

#include "common/attempt/message.h"

struct row *out_row(struct coord *c, enum row_kind kind, const void *record)
{
    struct coord_out *o = c->out;
    c->unmarked = c->unmarked || kind != ROW_META;
    c->unmarked_saves = c->unmarked_saves || kind == ROW_CHECKPOINT;
    o->rows = arena_grow(o->arena, o->rows, sizeof *o->rows, o->nrows, &o->cap_rows);
    o->rows[o->nrows] = row_make(kind, record, o->arena);
    return &o->rows[o->nrows++];
}

void out_erase(struct coord *c, enum row_kind kind, const void *record)
{
    out_row(c, kind, record)->erase = true;
}

static struct coord_action *add_action(struct coord *c, enum coord_action_kind kind)
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
    struct coord_action *a = add_action(c, COORD_SEND);
    a->conn = conn;
    a->down = message_dup(c->out->arena, &down->base);
}

void out_drop(struct coord *c, uint64_t conn, int code, const char *text)
{
    struct coord_action *a = add_action(c, COORD_DROP);
    a->conn = conn;
    a->code = code;
    a->text = arena_strdup(c->out->arena, text);
}

void out_reply(struct coord *c, uint64_t call, const ProtobufCMessage *reply)
{
    struct coord_action *a = add_action(c, COORD_REPLY);
    a->call = call;
    a->reply = message_dup(c->out->arena, reply);
}

void out_refuse(struct coord *c, uint64_t call, int code, const char *text)
{
    struct coord_action *a = add_action(c, COORD_REFUSE);
    a->call = call;
    a->code = code;
    a->text = arena_strdup(c->out->arena, text);
}

void out_post(struct coord *c, const char *receiver, const char *id, const char *body)
{
    struct coord_action *a = add_action(c, COORD_POST);
    a->receiver = receiver; // the coordinator's own, for its life
    a->job = arena_strdup(c->out->arena, id);
    a->text = arena_strdup(c->out->arena, body);
}

void out_publish(struct coord *c, const char *job, const Weft__V1__WatchUpdate *update)
{
    struct coord_action *a = add_action(c, COORD_PUBLISH);
    a->job = arena_strdup(c->out->arena, job);
    a->update = message_dup(c->out->arena, &update->base);
}
