// SPDX-License-Identifier: Apache-2.0
// What an agent remembers of attempts. See attempts.h.
#include "worker/agent/attempts.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/heap.h"

// A barrier's answer is needed until every host has it; ranks are never further apart than two.
enum { BARRIERS_REMEMBERED = 16, SLOTS_GROW = 16 };
#define BODY(name) WEFT__RANK__FRAME__BODY_##name

// ---- topics ----

struct topic topic_of_frame(const Weft__Rank__Frame *f)
{
    switch (f->body_case) {
    case BODY(KV_PUT):
        return (struct topic){TOPIC_PUT, 0, f->kv_put->key};
    case BODY(KV_GET):
        return (struct topic){TOPIC_GET, 0, f->kv_get->key};
    case BODY(KV_VALUE):
        return (struct topic){f->kv_value->put ? TOPIC_PUT : TOPIC_GET, 0, f->kv_value->key};
    case BODY(BARRIER):
        return (struct topic){TOPIC_BARRIER, f->barrier->seq, f->barrier->name};
    case BODY(BARRIER_DONE):
        return (struct topic){TOPIC_BARRIER, f->barrier_done->seq, f->barrier_done->name};
    case BODY(READY):
    case BODY(READY_DONE):
        return (struct topic){TOPIC_READY, 0, ""};
    case BODY(SHARD_DONE):
        return (struct topic){TOPIC_SAVE, f->shard_done->step, ""};
    case BODY(COMMIT):
        return (struct topic){TOPIC_SAVE, f->commit->step, ""};
    case BODY(COMMIT_DONE):
        return (struct topic){TOPIC_SAVE, f->commit_done->step, ""};
    case BODY(COMMITTED):
        return (struct topic){TOPIC_SAVE, f->committed->step, ""};
    case BODY(ABORTED):
        return (struct topic){TOPIC_SAVE, f->aborted->step, ""};
    default:
        return (struct topic){TOPIC_NONE, 0, ""};
    }
}

bool topic_same(const struct topic *a, const struct topic *b)
{
    return a->kind == b->kind && a->number == b->number && !strcmp(a->name, b->name);
}

// ---- frames that are remembered ----

struct attempt_frame *attempt_frame_find(const struct list *l, int rank, int kind,
                                         const struct topic *topic)
{
    for (struct list *it = l->next; it != l; it = it->next) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        if ((f->rank != rank && f->rank >= 0) || (int)f->frame->body_case != kind)
            continue;
        struct topic its = topic_of_frame(f->frame);
        if (topic_same(&its, topic))
            return f;
    }
    return NULL;
}

void attempt_frame_free(struct attempt_frame *f)
{
    list_remove(&f->link);
    weft__rank__frame__free_unpacked(f->frame, NULL);
    free(f);
}

static void drop_oldest_barrier(struct list *l, int rank)
{
    struct attempt_frame *oldest = NULL;
    int n = 0;
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        if (f->rank != rank || f->frame->body_case != BODY(BARRIER_DONE))
            continue;
        oldest = oldest ? oldest : f;
        n++;
    }
    if (n > BARRIERS_REMEMBERED)
        attempt_frame_free(oldest);
}

struct attempt_frame *attempt_frame_add(struct list *l, int rank, const Weft__Rank__Frame *f)
{
    struct topic topic = topic_of_frame(f);
    struct attempt_frame *old = attempt_frame_find(l, rank, (int)f->body_case, &topic);
    struct attempt_frame *new = heap_alloc(sizeof *new);
    new->rank = rank;
    new->sent_ns = UNSENT;
    new->frame = message_copy(&f->base);
    if (old && old->rank == rank)
        attempt_frame_free(old);
    list_append(l, &new->link);
    if (f->body_case == BODY(BARRIER_DONE))
        drop_oldest_barrier(l, rank);
    return new;
}

static void free_frames(struct list *l)
{
    list_for_each (it, l)
        attempt_frame_free(list_entry(it, struct attempt_frame, link));
}

// ---- attempts ----

void attempts_init(struct attempts *t)
{
    memset(t, 0, sizeof *t);
    list_init(&t->all);
}

struct local_attempt *attempts_find(const struct attempts *t, const char *job, uint64_t attempt)
{
    for (struct list *it = t->all.next; it != &t->all; it = it->next) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        if (at->number == attempt && !strcmp(at->job, job))
            return at;
    }
    return NULL;
}

uint64_t attempts_newest(const struct attempts *t, const char *job)
{
    uint64_t newest = 0;
    for (struct list *it = t->all.next; it != &t->all; it = it->next) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        if (!strcmp(at->job, job) && at->number > newest)
            newest = at->number;
    }
    return newest;
}

struct local_attempt *attempts_add(struct attempts *t, const char *job, uint64_t attempt,
                                   int nranks)
{
    struct local_attempt *at = heap_alloc(sizeof *at);
    at->job = heap_strdup(job);
    at->number = attempt;
    at->nranks = nranks;
    at->ranks = heap_alloc(sizeof *at->ranks * (size_t)(nranks + 1));
    for (int i = 0; i < nranks; i++)
        at->ranks[i].slot = -1;
    list_init(&at->questions);
    list_init(&at->answers);
    list_init(&at->puts);
    list_append(&t->all, &at->link);
    return at;
}

void attempts_remove(struct local_attempt *at)
{
    free_frames(&at->questions);
    free_frames(&at->answers);
    free_frames(&at->puts);
    for (int i = 0; i < at->nranks; i++) {
        PRE(at->ranks[i].slot < 0);
        weft__rank__exit__free_unpacked(at->ranks[i].exit, NULL);
        weft__v1__rank_end__free_unpacked(at->ranks[i].end, NULL);
        weft__rank__frame__free_unpacked(at->ranks[i].report, NULL);
    }
    list_remove(&at->link);
    free(at->ranks);
    free(at->job);
    free(at);
}

void attempts_clear(struct attempts *t)
{
    for (int i = 0; i < t->nslots; i++)
        if (t->slots[i].attempt)
            slot_give_back(t, i);
    list_for_each (it, &t->all)
        attempts_remove(list_entry(it, struct local_attempt, link));
    attempts_forget_reaped(t);
    free(t->slots);
    attempts_init(t);
}

struct attempt_rank *attempts_find_rank(const struct local_attempt *at, int rank)
{
    for (int i = 0; i < at->nranks; i++)
        if (at->ranks[i].rank == rank)
            return &at->ranks[i];
    return NULL;
}

uint64_t attempts_newest_reaped(const struct attempts *t, const char *job)
{
    const uint64_t *attempt = map_get(&t->reaped, job);
    return attempt ? *attempt : 0;
}

void attempts_set_reaped(struct attempts *t, const char *job, uint64_t attempt)
{
    uint64_t *e = map_get(&t->reaped, job);
    if (!e) {
        e = heap_alloc(sizeof *e);
        (void)map_put(&t->reaped, job, e);
    }
    *e = *e > attempt ? *e : attempt;
}

void attempts_forget_reaped(struct attempts *t)
{
    for (size_t i = 0; i < t->reaped.cap; i++)
        if (t->reaped.slots[i].key)
            free(t->reaped.slots[i].value);
    map_clear(&t->reaped);
}

// ---- slots ----

void slot_take(struct attempts *t, struct local_attempt *at, struct attempt_rank *r)
{
    int slot = 0;
    while (slot < t->nslots && t->slots[slot].attempt)
        slot++;
    if (slot == t->nslots) {
        t->slots = realloc(t->slots, sizeof *t->slots * (size_t)(slot + SLOTS_GROW));
        PRE(t->slots != NULL);
        memset(t->slots + slot, 0, sizeof *t->slots * SLOTS_GROW);
        t->nslots += SLOTS_GROW;
    }
    t->slots[slot] = (struct process_slot){at, r};
    r->slot = slot;
    t->living++;
}

void slot_give_back(struct attempts *t, int slot)
{
    t->slots[slot].rank->slot = -1;
    t->slots[slot] = (struct process_slot){NULL, NULL};
    t->living--;
}

struct process_slot slot_get(const struct attempts *t, int slot)
{
    return slot >= 0 && slot < t->nslots ? t->slots[slot] : (struct process_slot){NULL, NULL};
}
