// SPDX-License-Identifier: Apache-2.0
// Keys, barriers, agreement; see board.h.
#include "common/attempt/board.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader_act.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/heap.h"

struct entry {   // of a key: put, waited for, or both
    int writer;  // -1: not known (recalled)
    char *value; // null: not put yet
    bool *waits; // [ranks]
};

enum { ENTRY = 160 }; // bytes of an entry with its places in the heap and the map

struct barrier {
    struct list link;
    int64_t seq, deadline_ns; // 0: none
    bool *here;               // [ranks]
    int n;
    bool done;
    char *failed; // "" when all came
    char name[];
};

void board_init(struct board *b, int ranks, board_where_fn *where, const void *ctx)
{
    memset(b, 0, sizeof *b);
    b->where = where;
    b->ctx = ctx;
    b->ranks = ranks;
    list_init(&b->barriers);
    b->plans = heap_alloc(sizeof *b->plans * (size_t)ranks);
}

static void forget_barrier(struct board *b, struct barrier *bar)
{
    list_remove(&bar->link);
    b->nbarriers--;
    free(bar->here);
    free(bar->failed);
    free(bar);
}

void board_clear(struct board *b)
{
    for (size_t i = 0; i < b->keys.cap; i++) {
        struct entry *en = b->keys.slots[i].key ? b->keys.slots[i].value : NULL;
        if (!en)
            continue;
        free(en->value);
        free(en->waits);
        free(en);
    }
    map_clear(&b->keys);
    list_for_each (it, &b->barriers)
        forget_barrier(b, list_entry(it, struct barrier, link));
    for (int r = 0; r < b->ranks; r++)
        free(b->plans[r]);
    free(b->plans);
    free(b->agreed);
}

// ---- keys ----

static void send_value(struct leader_out *out, int rank, const char *key, const char *value,
                       const char *failed, bool put)
{
    Weft__Rank__KvValue *body = arena_new(out->arena, Weft__Rank__KvValue);
    weft__rank__kv_value__init(body);
    body->key = frame_text(key);
    body->value = frame_text(value);
    body->failed = arena_strdup(out->arena, failed);
    body->put = put;
    leader_send(out, rank, WEFT__RANK__FRAME__BODY_KV_VALUE)->kv_value = body;
}

static void answer_waiting(const struct board *b, const struct entry *en, const char *key,
                           struct leader_out *out)
{
    for (int r = 0; r < b->ranks; r++)
        if (en->waits[r])
            send_value(out, r, key, en->value, "", false);
}

static bool take_room(struct board *b, size_t bytes)
{
    if (bytes > BOARD_BYTES_MAX - b->bytes)
        return false;
    b->bytes += bytes;
    return true;
}

// The entry of a key, made if it is new; null with the reason when it may not be.
static struct entry *find_entry(struct board *b, const char *key, const char **refused)
{
    struct entry *en = map_get(&b->keys, key);
    if (en)
        return en;
    if (strlen(key) >= BOARD_KEY_MAX || !take_room(b, ENTRY + strlen(key) + (size_t)b->ranks)) {
        *refused = "the key is too long, or there are too many";
        return NULL;
    }
    en = heap_alloc(sizeof *en);
    en->waits = heap_alloc(sizeof *en->waits * (size_t)b->ranks);
    map_put(&b->keys, key, en);
    return en;
}

void board_put(struct board *b, int rank, const Weft__Rank__KvPut *f, struct leader_out *out)
{
    const char *refused = "";
    char text[120];
    struct entry *en = find_entry(b, f->key, &refused);
    if (en && strlen(f->value) >= BOARD_VALUE_MAX) {
        refused = "the value is too long";
    } else if (en && !en->value && !take_room(b, strlen(f->value))) {
        refused = "there are too many values";
    } else if (en && !en->value) {
        en->value = heap_strdup(f->value);
        en->writer = rank;
        answer_waiting(b, en, f->key, out);
    } else if (en && en->writer < 0 && !strcmp(en->value, f->value)) {
        en->writer = rank;
    } else if (en && (en->writer != rank || strcmp(en->value, f->value))) {
        snprintf(text, sizeof text, "the key has another value, of rank %d", en->writer);
        refused = text;
    }
    send_value(out, rank, f->key, "", refused, true);
}

void board_get(struct board *b, int rank, const char *key, struct leader_out *out)
{
    const char *refused = "";
    struct entry *en = find_entry(b, key, &refused);
    if (!en)
        send_value(out, rank, key, "", refused, false);
    else if (en->value)
        send_value(out, rank, key, en->value, "", false);
    else
        en->waits[rank] = true;
}

// ---- barriers ----

static void send_done(struct leader_out *out, int rank, const char *name, int64_t seq,
                      const char *failed)
{
    Weft__Rank__BarrierDone *body = arena_new(out->arena, Weft__Rank__BarrierDone);
    weft__rank__barrier_done__init(body);
    body->name = arena_strdup(out->arena, name); // the barrier may be forgotten
    body->seq = seq;
    body->failed = arena_strdup(out->arena, failed);
    leader_send(out, rank, WEFT__RANK__FRAME__BODY_BARRIER_DONE)->barrier_done = body;
}

// The oldest one that was answered makes room; false: there is none.
static bool make_room(struct board *b)
{
    if (b->nbarriers < BOARD_BARRIERS_MAX)
        return true;
    list_for_each (it, &b->barriers) {
        struct barrier *bar = list_entry(it, struct barrier, link);
        if (!bar->done)
            continue;
        forget_barrier(b, bar);
        return true;
    }
    return false;
}

// Made if it is new; null when it may not be.
static struct barrier *find_barrier(struct board *b, const char *name, int64_t seq)
{
    list_for_each (it, &b->barriers) {
        struct barrier *bar = list_entry(it, struct barrier, link);
        if (bar->seq == seq && !strcmp(bar->name, name))
            return bar;
    }
    if (strlen(name) >= BOARD_KEY_MAX || !make_room(b))
        return NULL;
    struct barrier *bar = heap_alloc(sizeof *bar + strlen(name) + 1);
    strcpy(bar->name, name);
    bar->seq = seq;
    bar->here = heap_alloc(sizeof *bar->here * (size_t)b->ranks);
    list_append(&b->barriers, &bar->link);
    b->nbarriers++;
    return bar;
}

static void finish_barrier(struct board *b, struct barrier *bar, const char *failed,
                           struct leader_out *out)
{
    bar->done = true;
    bar->failed = strndup(failed, BOARD_VALUE_MAX); // who brings it back may say anything
    PRE(bar->failed != NULL);
    for (int r = 0; r < b->ranks; r++)
        if (bar->here[r])
            send_done(out, r, bar->name, bar->seq, bar->failed);
}

void board_barrier(struct board *b, int rank, const Weft__Rank__Barrier *f, int64_t now_ns,
                   struct leader_out *out)
{
    struct barrier *bar = find_barrier(b, f->name, f->seq);
    if (!bar) {
        send_done(out, rank, f->name, f->seq,
                  "the name is too long, or too many barriers are open");
        return;
    }
    if (bar->done) {
        send_done(out, rank, bar->name, bar->seq, bar->failed);
        return;
    }
    bar->n += !bar->here[rank];
    bar->here[rank] = true;
    bool bounded = f->timeout_ns > 0 && f->timeout_ns < INT64_MAX - now_ns;
    int64_t deadline_ns = bounded ? now_ns + f->timeout_ns : 0;
    if (deadline_ns && (!bar->deadline_ns || deadline_ns < bar->deadline_ns))
        bar->deadline_ns = deadline_ns;
    if (bar->n == b->ranks)
        finish_barrier(b, bar, "", out);
}

static void expire_barrier(struct board *b, struct barrier *bar, struct leader_out *out)
{
    struct buf text = {0};
    buf_printf(&text, "barrier %s %lld: %d of %d ranks came; missing: ", bar->name,
               (long long)bar->seq, bar->n, b->ranks);
    int named = 0;
    for (int r = 0; r < b->ranks; r++) {
        if (bar->here[r])
            continue;
        char where[BOARD_WHERE];
        b->where(b->ctx, r, where, sizeof where);
        if (named++ < 4)
            buf_printf(&text, "%s%s", named > 1 ? "; " : "", where);
    }
    if (named > 4)
        buf_printf(&text, "; and %d more", named - 4);
    finish_barrier(b, bar, buf_str(&text), out);
    buf_clear(&text);
}

void board_tick(struct board *b, int64_t now_ns, struct leader_out *out)
{
    list_for_each (it, &b->barriers) {
        struct barrier *bar = list_entry(it, struct barrier, link);
        if (!bar->done && bar->deadline_ns && now_ns >= bar->deadline_ns)
            expire_barrier(b, bar, out);
    }
}

// ---- agreement ----

static void send_ready(const struct board *b, int rank, struct leader_out *out)
{
    Weft__Rank__ReadyDone *body = arena_new(out->arena, Weft__Rank__ReadyDone);
    weft__rank__ready_done__init(body);
    body->failed = frame_text(b->agreed);
    body->called_off = b->called_off;
    leader_send(out, rank, WEFT__RANK__FRAME__BODY_READY_DONE)->ready_done = body;
}

static void compare_plans(struct board *b)
{
    struct buf text = {0};
    for (int r = 1; r < b->ranks; r++)
        if (strcmp(b->plans[r], b->plans[0]))
            buf_printf(&text, "%s %d",
                       text.len ? "," : "the plan or the data of rank 0 differs from that of rank",
                       r);
    b->agreed = heap_strdup(buf_str(&text));
    buf_clear(&text);
}

void board_ready(struct board *b, int rank, const char *plan_hash, struct leader_out *out)
{
    if (!b->plans[rank]) {
        b->plans[rank] = strndup(plan_hash, BOARD_KEY_MAX);
        PRE(b->plans[rank] != NULL);
        b->ready++;
    }
    if (b->agreed || b->called_off) {
        send_ready(b, rank, out);
        return;
    }
    if (b->ready < b->ranks)
        return;
    compare_plans(b);
    for (int r = 0; r < b->ranks; r++)
        send_ready(b, r, out);
}

void board_call_off(struct board *b, struct leader_out *out)
{
    if (b->agreed || b->called_off)
        return;
    b->called_off = true;
    for (int r = 0; r < b->ranks; r++)
        if (b->plans[r])
            send_ready(b, r, out);
}

// ---- a leader that has forgotten ----

static void recall_value(struct board *b, const char *key, const char *value,
                         struct leader_out *out)
{
    const char *refused;
    struct entry *en = find_entry(b, key, &refused);
    if (!en || en->value || strlen(value) >= BOARD_VALUE_MAX || !take_room(b, strlen(value)))
        return;
    en->value = heap_strdup(value);
    en->writer = -1;
    answer_waiting(b, en, key, out);
}

void board_recall(struct board *b, const Weft__Rank__Frame *f, struct leader_out *out)
{
    struct barrier *bar;
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_PUT:
        recall_value(b, f->kv_put->key, f->kv_put->value, out);
        return;
    case WEFT__RANK__FRAME__BODY_KV_VALUE:
        if (!f->kv_value->put && !f->kv_value->failed[0])
            recall_value(b, f->kv_value->key, f->kv_value->value, out);
        return;
    case WEFT__RANK__FRAME__BODY_BARRIER_DONE:
        bar = find_barrier(b, f->barrier_done->name, f->barrier_done->seq);
        if (bar && !bar->done)
            finish_barrier(b, bar, f->barrier_done->failed, out);
        return;
    case WEFT__RANK__FRAME__BODY_READY_DONE:
        if (b->agreed || b->called_off)
            return;
        b->called_off = f->ready_done->called_off;
        if (b->called_off)
            return;
        b->agreed = strndup(f->ready_done->failed, BOARD_VALUE_MAX);
        PRE(b->agreed != NULL);
        return;
    default:
        return;
    }
}

void board_extend(struct board *b, int64_t ns)
{
    list_for_each (it, &b->barriers) {
        struct barrier *bar = list_entry(it, struct barrier, link);
        if (bar->deadline_ns)
            bar->deadline_ns += ns;
    }
}
