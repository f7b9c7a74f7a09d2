// SPDX-License-Identifier: Apache-2.0
// Schedules. See schedule.h.
#include "common/compile/program/schedule.h"

static void add_slot(struct schedule *s, enum phase phase, int microbatch)
{
    s->slots[s->n++] = (struct slot){.phase = phase, .microbatch = microbatch};
}

void schedule_build(struct schedule *s, struct arena *a, enum program_kind kind, int microbatches,
                    enum job_pipeline_schedule how, int stage, int nstages)
{
    *s = (struct schedule){.microbatches = microbatches};
    s->slots = arena_array(a, struct slot, 2 * microbatches + 1);
    bool train = kind == PROGRAM_TRAIN;
    int ahead = nstages - 1 - stage; // forwards before the first backward's own
    if (!train || (how == JOB_GPIPE && nstages > 1) || ahead > microbatches)
        ahead = microbatches;
    for (int m = 0; m < microbatches + ahead; m++) {
        if (m < microbatches)
            add_slot(s, PHASE_FORWARD, m);
        if (train && m >= ahead)
            add_slot(s, PHASE_BACKWARD, m - ahead);
    }
    add_slot(s, PHASE_UPDATE, microbatches - 1);
}

int schedule_verify(const struct schedule *s, enum program_kind kind, struct err *e)
{
    int done[PHASE_COUNT] = {0};
    for (int i = 0; i < s->n; i++) {
        struct slot t = s->slots[i];
        bool update = t.phase == PHASE_UPDATE;
        if (!update && t.microbatch != done[t.phase])
            return err_set(e, ERR_INTERNAL, "schedule: %s of microbatch %d out of order",
                           phase_name(t.phase), t.microbatch);
        if (t.phase == PHASE_BACKWARD && t.microbatch >= done[PHASE_FORWARD])
            return err_set(e, ERR_INTERNAL,
                           "schedule: backward of microbatch %d before its forward", t.microbatch);
        done[t.phase]++;
        if (update && i != s->n - 1)
            return err_set(e, ERR_INTERNAL, "schedule: the update is not the last slot");
    }
    int backward = kind == PROGRAM_TRAIN ? s->microbatches : 0;
    if (done[PHASE_FORWARD] != s->microbatches || done[PHASE_BACKWARD] != backward ||
        done[PHASE_UPDATE] != 1)
        return err_set(e, ERR_INTERNAL, "schedule: %d forward, %d backward, %d update slots",
                       done[PHASE_FORWARD], done[PHASE_BACKWARD], done[PHASE_UPDATE]);
    return 0;
}

// ---- all stages together ------------------------------------------------------------------------

struct running {   // one stage
    int at;        // the slot it is in
    bool computed; // and sending
    double free;   // when it has computed what it has so far
};
struct run {
    struct schedule *s;
    int nstages;
    const int64_t *layers;
    struct running *stage;
};

static int find_slot(const struct schedule *s, enum phase phase, int microbatch)
{
    for (int i = 0; i < s->n; i++)
        if (s->slots[i].phase == phase && s->slots[i].microbatch == microbatch)
            return i;
    return s->n;
}

// Returns the stage that a slot receives from (`from`) or sends to; −1: none.
static int find_other_stage(const struct run *r, int stage, enum phase phase, bool from)
{
    if (phase == PHASE_UPDATE)
        return -1;
    int to = stage + ((phase == PHASE_FORWARD) == from ? -1 : 1);
    return to < r->nstages ? to : -1;
}

// Returns the time at which a slot's input was computed by its sender; below 0: not yet.
static double find_ready_time(const struct run *r, int stage, const struct slot *t)
{
    int from = find_other_stage(r, stage, t->phase, true);
    if (from < 0)
        return 0;
    int at = find_slot(&r->s[from], t->phase, t->microbatch);
    const struct running *sender = &r->stage[from];
    bool sent = at < sender->at || (at == sender->at && sender->computed);
    return sent ? r->s[from].slots[at].end : -1;
}

static bool can_send(const struct run *r, int stage, const struct slot *t)
{
    int to = find_other_stage(r, stage, t->phase, false);
    int at = to < 0 ? 0 : find_slot(&r->s[to], t->phase, t->microbatch);
    return to < 0 || (at < r->s[to].n && at <= r->stage[to].at + 1);
}

static bool advance_stage(struct run *r, int stage)
{
    static const int cost[PHASE_COUNT] = {1, 2, 0};
    struct running *now = &r->stage[stage];
    if (now->at == r->s[stage].n)
        return false;
    struct slot *t = &r->s[stage].slots[now->at];
    if (!now->computed) {
        double from = find_ready_time(r, stage, t);
        if (from < 0)
            return false;
        t->start = from > now->free ? from : now->free;
        int64_t layers = r->layers[stage] ? r->layers[stage] : 1;
        now->free = t->end = t->start + cost[t->phase] * (double)layers;
        return now->computed = true;
    }
    if (!can_send(r, stage, t))
        return false;
    now->at++;
    now->computed = false;
    return true;
}

static int find_stash_peak(const struct schedule *s)
{
    int now = 0, peak = 0;
    for (int i = 0; i < s->n; i++) {
        now += s->slots[i].phase == PHASE_FORWARD    ? 1
               : s->slots[i].phase == PHASE_BACKWARD ? -1
                                                     : 0;
        peak = now > peak ? now : peak;
    }
    return peak;
}

static int report_deadlock(const struct run *r, int stage, struct err *e)
{
    const struct running *now = &r->stage[stage];
    const struct slot *t = &r->s[stage].slots[now->at];
    return err_set(e, ERR_INTERNAL, "schedule: deadlock: stage %d waits %s %s of microbatch %d",
                   stage, now->computed ? "to send the" : "for what it needs in the",
                   phase_name(t->phase), t->microbatch);
}

int schedule_simulate(struct schedule *s, int nstages, const int64_t *layers,
                      struct schedule_cost *out, struct err *e)
{
    struct arena scratch = {0};
    struct run r = {s, nstages, layers, arena_array(&scratch, struct running, nstages)};
    double busy = 0;
    int rc = 0;
    *out = (struct schedule_cost){0};
    for (bool advanced = true; advanced;) {
        advanced = false;
        for (int i = 0; i < nstages; i++)
            while (advance_stage(&r, i))
                advanced = true;
    }
    for (int i = 0; i < nstages && !rc; i++) {
        int stash = find_stash_peak(&s[i]);
        if (r.stage[i].at < s[i].n)
            rc = report_deadlock(&r, i, e);
        out->makespan = r.stage[i].free > out->makespan ? r.stage[i].free : out->makespan;
        out->peak_stash = stash > out->peak_stash ? stash : out->peak_stash;
        for (int k = 0; k < s[i].n; k++)
            busy += s[i].slots[k].end - s[i].slots[k].start;
    }
    if (!rc && out->makespan > 0)
        out->bubble = 1 - busy / (nstages * out->makespan);
    arena_clear(&scratch);
    return rc;
}
