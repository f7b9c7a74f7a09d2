// SPDX-License-Identifier: Apache-2.0
// A decider of commits that hears of shards and acts, event by event. For test_ckpt_commit and
// test_ckpt_schedules.
#pragma once
#include "common/ckpt/commit.h"
#include "tests/unit/ckpt_fixture.h"

struct commit_case {
    struct commit c;
    struct arena a;
    struct commit_actions acts; // of the last event
    int64_t now;
};

static inline void begin_case(struct commit_case *s, int nranks, int keep, int64_t every)
{
    *s = (struct commit_case){0};
    struct commit_config config = {
        .nranks = nranks, .deadline_ns = 100, .keep = keep, .keep_every = every};
    arena_init(&s->a);
    commit_init(&s->c, &config);
    commit_fence(&s->c, 1, NULL, 0);
}

static inline void end_case(struct commit_case *s)
{
    commit_clear(&s->c);
    arena_clear(&s->a);
}

static inline void feed(struct commit_case *s, struct commit_event ev)
{
    s->acts = (struct commit_actions){0};
    ev.now_ns = s->now;
    commit_step(&s->c, &ev, &s->a, &s->acts);
}

static inline struct store_entry id(int64_t attempt, int64_t step)
{
    return (struct store_entry){.attempt = attempt, .step = step};
}

static inline double loss_of(int64_t step) // of an evaluation after it
{
    return (double)(step * 7 % 11);
}

static inline void shard(struct commit_case *s, int64_t step, int rank, int code)
{
    struct shard_report r = {
        .rank = rank, .step = step, .code = code, .evaluated = true, .eval_loss = loss_of(step)};
    snprintf(r.text, sizeof r.text, "no space");
    feed(s, (struct commit_event){
                .kind = COMMIT_EV_SHARD, .id = id(s->c.attempt, step), .report = &r});
}

static inline void shard_again(struct commit_case *s, int64_t step, int rank, int tries, int code)
{
    struct shard_report r = {.rank = rank, .step = step, .tries = tries, .code = code};
    feed(s, (struct commit_event){
                .kind = COMMIT_EV_SHARD, .id = id(s->c.attempt, step), .report = &r});
}

static inline void done(struct commit_case *s, int64_t step, bool ok)
{
    feed(s,
         (struct commit_event){
             .kind = COMMIT_EV_DONE, .id = id(s->c.attempt, step), .ok = ok, .text = "no rename"});
}

static inline void save(struct commit_case *s, int64_t step)
{
    for (int r = 0; r < s->c.config.nranks; r++)
        shard(s, step, r, 0);
    done(s, step, true);
}

static inline void expect(const struct commit_case *s, int i, enum commit_action_kind kind,
                          int64_t step, int rank)
{
    assert_true(i < s->acts.n);
    assert_int_equal(s->acts.v[i].kind, kind);
    assert_int_equal(s->acts.v[i].id.step, step);
    assert_int_equal(s->acts.v[i].rank, rank);
}
