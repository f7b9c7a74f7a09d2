// SPDX-License-Identifier: Apache-2.0
// What is kept of attempts; see attempts.h.
#include "worker/attempts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

// A barrier's answer is needed until every host has it; ranks are never further apart than two.
enum { BARRIERS_KEPT = 16, SLOTS_GROW = 16 };

static void *must(void *p)
{
    PRE(p != NULL); // small control structures: without them nothing can be decided
    return p;
}

// ---- copies ----

ProtobufCMessage *message_copy(const ProtobufCMessage *m)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = must(malloc(len + 1));
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = must(protobuf_c_message_unpack(m->descriptor, NULL, len, bytes));
    free(bytes);
    return copy;
}

static void *arena_get(void *a, size_t n)
{
    return arena_alloc(a, n);
}

static void arena_keep(void *a, void *p)
{
    (void)a;
    (void)p;
}

ProtobufCMessage *message_dup(struct arena *a, const ProtobufCMessage *m)
{
    ProtobufCAllocator from = {.alloc = arena_get, .free = arena_keep, .allocator_data = a};
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = arena_alloc(a, len + 1);
    protobuf_c_message_pack(m, bytes);
    return must(protobuf_c_message_unpack(m->descriptor, &from, len, bytes));
}

Weft__Rank__Frame *frame_copy(const Weft__Rank__Frame *f)
{
    return (Weft__Rank__Frame *)(void *)message_copy(&f->base);
}

Weft__Rank__Frame *frame_dup(struct arena *a, const Weft__Rank__Frame *f)
{
    return (Weft__Rank__Frame *)(void *)message_dup(a, &f->base);
}

// ---- topics ----

#define CASE(name) WEFT__RANK__FRAME__BODY_##name
bool frame_topic(const Weft__Rank__Frame *f, char out[TOPIC_MAX])
{
    switch (f->body_case) {
    case CASE(KV_PUT):
        return snprintf(out, TOPIC_MAX, "put/%s", f->kv_put->key) < TOPIC_MAX;
    case CASE(KV_GET):
        return snprintf(out, TOPIC_MAX, "get/%s", f->kv_get->key) < TOPIC_MAX;
    case CASE(KV_VALUE):
        return snprintf(out, TOPIC_MAX, "%s/%s", f->kv_value->put ? "put" : "get",
                        f->kv_value->key) < TOPIC_MAX;
    case CASE(BARRIER):
        return snprintf(out, TOPIC_MAX, "barrier/%lld/%s", (long long)f->barrier->seq,
                        f->barrier->name) < TOPIC_MAX;
    case CASE(BARRIER_DONE):
        return snprintf(out, TOPIC_MAX, "barrier/%lld/%s", (long long)f->barrier_done->seq,
                        f->barrier_done->name) < TOPIC_MAX;
    case CASE(READY):
    case CASE(READY_DONE):
        return snprintf(out, TOPIC_MAX, "ready") < TOPIC_MAX;
    case CASE(SHARD_DONE):
        return snprintf(out, TOPIC_MAX, "save/%lld", (long long)f->shard_done->step) < TOPIC_MAX;
    case CASE(COMMIT):
        return snprintf(out, TOPIC_MAX, "save/%lld", (long long)f->commit->step) < TOPIC_MAX;
    case CASE(COMMIT_DONE):
        return snprintf(out, TOPIC_MAX, "save/%lld", (long long)f->commit_done->step) < TOPIC_MAX;
    case CASE(COMMITTED):
        return snprintf(out, TOPIC_MAX, "save/%lld", (long long)f->committed->step) < TOPIC_MAX;
    case CASE(ABORTED):
        return snprintf(out, TOPIC_MAX, "save/%lld", (long long)f->aborted->step) < TOPIC_MAX;
    default:
        return false;
    }
}

// ---- kept frames ----

struct kept_frame *keep_find(const struct list *l, int rank, int kind, const char *topic)
{
    for (struct list *it = l->next; it != l; it = it->next) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        if ((f->rank == rank || f->rank < 0) && (int)f->frame->body_case == kind &&
            !strcmp(f->topic, topic))
            return f;
    }
    return NULL;
}

void keep_remove(struct kept_frame *f)
{
    list_remove(&f->link);
    weft__rank__frame__free_unpacked(f->frame, NULL);
    free(f);
}

static void drop_old_barriers(struct list *l, int rank)
{
    struct kept_frame *oldest = NULL;
    int n = 0;
    list_for_each (it, l) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        if (f->rank != rank || f->frame->body_case != CASE(BARRIER_DONE))
            continue;
        oldest = oldest ? oldest : f;
        n++;
    }
    if (n > BARRIERS_KEPT)
        keep_remove(oldest);
}

struct kept_frame *keep_add(struct list *l, int rank, const char *topic, const Weft__Rank__Frame *f)
{
    struct kept_frame *old = keep_find(l, rank, (int)f->body_case, topic);
    if (old && old->rank == rank)
        keep_remove(old);
    struct kept_frame *k = must(calloc(1, sizeof *k));
    k->rank = rank;
    k->frame = frame_copy(f);
    snprintf(k->topic, sizeof k->topic, "%s", topic);
    list_append(l, &k->link);
    if (f->body_case == CASE(BARRIER_DONE))
        drop_old_barriers(l, rank);
    return k;
}

static void keep_clear(struct list *l)
{
    list_for_each (it, l)
        keep_remove(list_entry(it, struct kept_frame, link));
}

// ---- attempts ----

void attempts_init(struct attempts *t)
{
    memset(t, 0, sizeof *t);
    list_init(&t->all);
}

struct kept *attempts_find(const struct attempts *t, const char *job, uint64_t epoch)
{
    for (struct list *it = t->all.next; it != &t->all; it = it->next) {
        struct kept *k = list_entry(it, struct kept, link);
        if (k->epoch == epoch && !strcmp(k->job, job))
            return k;
    }
    return NULL;
}

uint64_t attempts_newest(const struct attempts *t, const char *job)
{
    uint64_t newest = 0;
    for (struct list *it = t->all.next; it != &t->all; it = it->next) {
        struct kept *k = list_entry(it, struct kept, link);
        if (!strcmp(k->job, job) && k->epoch > newest)
            newest = k->epoch;
    }
    return newest;
}

struct kept *attempts_add(struct attempts *t, const char *job, uint64_t epoch, int nranks)
{
    struct kept *k = must(calloc(1, sizeof *k));
    k->job = must(strdup(job));
    k->epoch = epoch;
    k->n = nranks;
    k->ranks = must(calloc((size_t)nranks + 1, sizeof *k->ranks));
    for (int i = 0; i < nranks; i++)
        k->ranks[i].slot = -1;
    list_init(&k->asked);
    list_init(&k->answered);
    list_init(&k->puts);
    list_append(&t->all, &k->link);
    return k;
}

void attempts_drop(struct attempts *t, struct kept *k)
{
    PRE(!kept_is_alive(k));
    (void)t;
    keep_clear(&k->asked);
    keep_clear(&k->answered);
    keep_clear(&k->puts);
    for (int i = 0; i < k->n; i++) {
        free(k->ranks[i].why);
        if (k->ranks[i].end)
            weft__v1__rank_end__free_unpacked(k->ranks[i].end, NULL);
        if (k->ranks[i].report)
            weft__rank__frame__free_unpacked(k->ranks[i].report, NULL);
    }
    list_remove(&k->link);
    free(k->ranks);
    free(k->job);
    free(k);
}

void attempts_clear(struct attempts *t)
{
    for (int i = 0; i < t->nslots; i++)
        if (t->slots[i].k)
            slot_free(t, i);
    if (t->all.next)
        list_for_each (it, &t->all)
            attempts_drop(t, list_entry(it, struct kept, link));
    for (size_t i = 0; i < t->reaped.cap; i++)
        if (t->reaped.slots[i].key)
            free(t->reaped.slots[i].value);
    map_clear(&t->reaped);
    free(t->slots);
    attempts_init(t);
}

struct kept_rank *kept_find(const struct kept *k, int rank)
{
    for (int i = 0; i < k->n; i++)
        if (k->ranks[i].rank == rank)
            return &k->ranks[i];
    return NULL;
}

bool kept_is_alive(const struct kept *k)
{
    for (int i = 0; i < k->n; i++)
        if (k->ranks[i].slot >= 0)
            return true;
    return false;
}

uint64_t attempts_reaped(const struct attempts *t, const char *job)
{
    const uint64_t *epoch = map_get(&t->reaped, job);
    return epoch ? *epoch : 0;
}

void attempts_set_reaped(struct attempts *t, const char *job, uint64_t epoch)
{
    uint64_t *e = map_get(&t->reaped, job);
    if (!e) {
        e = must(calloc(1, sizeof *e));
        (void)map_put(&t->reaped, job, e);
    }
    *e = *e > epoch ? *e : epoch;
}

// ---- slots ----

int slot_take(struct attempts *t, struct kept *k, struct kept_rank *r)
{
    int slot = 0;
    while (slot < t->nslots && t->slots[slot].k)
        slot++;
    if (slot == t->nslots) {
        t->slots = must(realloc(t->slots, sizeof *t->slots * (size_t)(slot + SLOTS_GROW)));
        memset(t->slots + slot, 0, sizeof *t->slots * SLOTS_GROW);
        t->nslots += SLOTS_GROW;
    }
    t->slots[slot] = (struct place){k, r};
    r->slot = slot;
    t->living++;
    return slot;
}

void slot_free(struct attempts *t, int slot)
{
    t->slots[slot].r->slot = -1;
    t->slots[slot] = (struct place){NULL, NULL};
    t->living--;
}

struct place slot_place(const struct attempts *t, int slot)
{
    return slot >= 0 && slot < t->nslots ? t->slots[slot] : (struct place){NULL, NULL};
}
