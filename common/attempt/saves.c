// SPDX-License-Identifier: Apache-2.0
// Frames around the decisions of commit.h; see saves.h.
#include "common/attempt/saves.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/attempt/leader_act.h"
#include "common/attempt/message.h"
#include "common/base/heap.h"

enum { DIGEST_BYTES = 16, REPORT_MAX = 4 << 20 }; // of a report of a shard; a slice takes 16

void saves_init(struct saves *s, const struct commit_config *c)
{
    *s = (struct saves){.ranks = c->nranks};
    commit_init(&s->commit, c);
    s->shards = heap_alloc(sizeof *s->shards * (size_t)c->nranks);
}

static void forget_shards(struct saves *s)
{
    for (int r = 0; r < s->ranks; r++) {
        weft__rank__shard_done__free_unpacked(s->shards[r], NULL);
        s->shards[r] = NULL;
    }
}

void saves_clear(struct saves *s)
{
    if (s->shards)
        forget_shards(s);
    free(s->shards);
    commit_clear(&s->commit);
}

// ---- frames down ----

static void send_order(const struct saves *s, int64_t step, struct leader_out *out)
{
    Weft__Rank__Commit *body = arena_new(out->arena, Weft__Rank__Commit);
    weft__rank__commit__init(body);
    body->step = step;
    body->shards = arena_array(out->arena, Weft__Rank__ShardDone *, s->ranks);
    for (int r = 0; r < s->ranks; r++)
        if (s->shards[r]) // all are in: commit sees to that
            body->shards[body->n_shards++] = s->shards[r];
    leader_send(out, 0, WEFT__RANK__FRAME__BODY_COMMIT)->commit = body;
}

static void send_aborted(const struct commit_action *x, struct leader_out *out)
{
    Weft__Rank__Aborted *body = arena_new(out->arena, Weft__Rank__Aborted);
    weft__rank__aborted__init(body);
    body->step = x->id.step;
    body->why = arena_strdup(out->arena, x->text);
    body->tries = x->tries;
    body->again = x->again;
    leader_send(out, x->rank, WEFT__RANK__FRAME__BODY_ABORTED)->aborted = body;
}

static void send_action(const struct saves *s, const struct commit_action *x,
                        struct leader_out *out)
{
    Weft__Rank__Committed *committed;
    Weft__Rank__Delete *deleted;
    switch (x->kind) {
    case COMMIT_DO_ORDER:
        send_order(s, x->id.step, out);
        return;
    case COMMIT_DO_COMMITTED:
        committed = arena_new(out->arena, Weft__Rank__Committed);
        weft__rank__committed__init(committed);
        committed->step = x->id.step;
        leader_send(out, x->rank, WEFT__RANK__FRAME__BODY_COMMITTED)->committed = committed;
        return;
    case COMMIT_DO_ABORTED:
        send_aborted(x, out);
        return;
    case COMMIT_DO_DELETE:
        deleted = arena_new(out->arena, Weft__Rank__Delete);
        weft__rank__delete__init(deleted);
        deleted->attempt = x->id.attempt;
        deleted->step = x->id.step;
        leader_send(out, 0, WEFT__RANK__FRAME__BODY_DELETE)->delete_ = deleted;
        return;
    case COMMIT_DO_LOST: // no rank need know
        return;
    }
}

// Reports to the leader's owner too what all ranks were sent.
static void report_to_owner(const struct commit_action *x, struct leader_out *out)
{
    static const enum leader_action_kind kinds[] = {[COMMIT_DO_COMMITTED] = LEADER_COMMITTED,
                                                    [COMMIT_DO_ABORTED] = LEADER_ABORTED,
                                                    [COMMIT_DO_LOST] = LEADER_LOST};
    bool reports =
        x->kind == COMMIT_DO_COMMITTED || x->kind == COMMIT_DO_ABORTED || x->kind == COMMIT_DO_LOST;
    if (!reports || x->rank >= 0)
        return;
    struct leader_action *a = leader_act(out, kinds[x->kind]);
    a->id = x->id;
    a->text = arena_strdup(out->arena, x->text);
    a->failed = x->failed;
    a->again = x->again;
    a->late = x->late;
}

// Deletions go out first: rank 0 carries out what it was ordered before the answer to its last save
// lets it end.
void saves_decide(struct saves *s, struct commit_event *ev, struct leader_out *out)
{
    struct commit_actions actions = {0};
    commit_step(&s->commit, ev, out->arena, &actions);
    leader_act(out, LEADER_RECORDS);
    for (int i = 0; i < actions.n; i++)
        if (actions.v[i].kind == COMMIT_DO_DELETE)
            send_action(s, &actions.v[i], out);
    for (int i = 0; i < actions.n; i++)
        if (actions.v[i].kind != COMMIT_DO_DELETE)
            send_action(s, &actions.v[i], out);
    for (int i = 0; i < actions.n; i++)
        report_to_owner(&actions.v[i], out);
}

// ---- frames up ----

// Whether the reports of a try to save `id` are kept. Only one checkpoint's are at a time: while
// another one is open this one will be refused, and keeping its reports would drop those of the open
// one.
static bool is_kept(const struct saves *s, struct store_entry id, int tries)
{
    const struct commit *c = &s->commit;
    const struct commit_record *known = commit_find(c, id);
    if (known && tries == known->tries)
        return known->state <= COMMIT_ORDERED;
    if (known && (tries < known->tries || known->state == COMMIT_PREPARING))
        return tries > known->tries;
    return c->open < 0;
}

static void keep_shard(struct saves *s, int rank, const Weft__Rank__ShardDone *f)
{
    if (s->shards_step != f->step || s->shards_tries != f->tries)
        forget_shards(s);
    s->shards_step = f->step;
    s->shards_tries = f->tries;
    if (s->shards[rank])
        return;
    s->shards[rank] = message_copy(&f->base);
    s->shards[rank]->rank = rank; // whatever it says: who speaks is known
}

void saves_shard(struct saves *s, int rank, const Weft__Rank__ShardDone *f, int64_t now_ns,
                 struct leader_out *out)
{
    struct store_entry id = {s->commit.attempt, f->step};
    struct shard_report r = {.rank = rank, .step = f->step, .tries = f->tries, .code = f->code};
    r.removed = f->removed;
    r.evaluated = f->evaluated;
    r.eval_loss = f->eval_loss;
    snprintf(r.text, sizeof r.text, "%s", f->text);
    if (!r.code && (f->head_digest.len != DIGEST_BYTES || f->digests.len % DIGEST_BYTES)) {
        r.code = ERR_DATA;
        snprintf(r.text, sizeof r.text, "a report of a shard with digests of a wrong length");
    }
    if (weft__rank__shard_done__get_packed_size(f) > REPORT_MAX) {
        r.code = ERR_DATA;
        snprintf(r.text, sizeof r.text, "a report of a shard of over %d bytes", REPORT_MAX);
    } else if (is_kept(s, id, f->tries))
        keep_shard(s, rank, f);
    struct commit_event ev = {.kind = COMMIT_EV_SHARD, .now_ns = now_ns, .id = id, .report = &r};
    saves_decide(s, &ev, out);
}

void saves_commit_done(struct saves *s, const Weft__Rank__CommitDone *f, int64_t now_ns,
                       struct leader_out *out)
{
    struct commit_event ev = {.kind = COMMIT_EV_DONE,
                              .now_ns = now_ns,
                              .id = {s->commit.attempt, f->step},
                              .ok = f->code == 0,
                              .text = f->text};
    saves_decide(s, &ev, out);
}

void saves_deleted(struct saves *s, const Weft__Rank__Deleted *f, struct leader_out *out)
{
    struct commit_event ev = {
        .kind = COMMIT_EV_DELETED, .id = {f->attempt, f->step}, .ok = f->code == 0};
    saves_decide(s, &ev, out);
}

// ---- time ----

void saves_tick(struct saves *s, int64_t now_ns, struct leader_out *out)
{
    int64_t due = commit_deadline(&s->commit);
    struct commit_event ev = {.kind = COMMIT_EV_TICK, .now_ns = now_ns};
    if (due && now_ns >= due)
        saves_decide(s, &ev, out);
}

void saves_extend(struct saves *s, int64_t ns)
{
    s->commit.opened_ns += ns;
}
