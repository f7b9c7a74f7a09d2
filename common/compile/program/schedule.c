// SPDX-License-Identifier: Apache-2.0
// Schedules. See schedule.h.
#include "common/compile/program/schedule.h"

// ---- the tables ---------------------------------------------------------------------------------

// The numbers in which the kinds of schedules differ.
struct recipe {
    int group; // so many microbatches pass all chunks before the next ones begin
    int ahead; // after so many forwards, each is followed by a backward
    // After so many backwards, each is followed by a slot for weight gradients; −1: a backward
    // computes them itself.
    int behind;
};

static struct recipe find_recipe(const struct schedule_of *of, int stage)
{
    int stages_behind = of->stages - 1 - stage, all = of->microbatches * of->chunks;
    struct recipe r = {.group = of->microbatches, .ahead = stages_behind, .behind = -1};
    switch (of->stages > 1 ? of->kind : JOB_1F1B) {
    case JOB_1F1B:
        break;
    case JOB_GPIPE:
    case JOB_CIRCULAR:
        r.ahead = all;
        break;
    case JOB_INTERLEAVED:
        r.group = of->stages;
        r.ahead = 2 * stages_behind + (of->chunks - 1) * of->stages;
        break;
    case JOB_ZERO_BUBBLE:
        r.behind = stage;
        break;
    }
    if (of->program != PROGRAM_TRAIN || r.ahead > all)
        r.ahead = all;
    return r;
}

// The k-th forward of a stage; the k-th backward is that of the same microbatch in the chunk as far
// from the last as this one is from the first.
static struct slot find_slot_at(const struct schedule_of *of, int group, int k, enum phase phase)
{
    int first = k / (group * of->chunks) * group, left = of->microbatches - first;
    int size = left < group ? left : group, at = k - first * of->chunks;
    int chunk = at / size;
    return (struct slot){.phase = phase,
                         .microbatch = first + at % size,
                         .chunk = phase == PHASE_FORWARD ? chunk : of->chunks - 1 - chunk};
}

static void build_stage(struct schedule *s, struct arena *a, const struct schedule_of *of,
                        int stage)
{
    struct recipe r = find_recipe(of, stage);
    int all = of->microbatches * of->chunks, weights = 0;
    bool train = of->program == PROGRAM_TRAIN;
    *s = (struct schedule){.slots = arena_array(a, struct slot, 3 * all + 1),
                           .receives = arena_array(a, int, 2 * all),
                           .microbatches = of->microbatches,
                           .chunks = of->chunks};
    for (int k = 0; k < all + r.ahead; k++) {
        int back = k - r.ahead;
        if (k < all)
            s->slots[s->n++] = find_slot_at(of, r.group, k, PHASE_FORWARD);
        if (train && back >= 0)
            s->slots[s->n++] = find_slot_at(of, r.group, back, PHASE_BACKWARD);
        if (train && r.behind >= 0 && back >= r.behind)
            s->slots[s->n++] = find_slot_at(of, r.group, weights++, PHASE_WEIGHTS);
    }
    while (train && r.behind >= 0 && weights < all)
        s->slots[s->n++] = find_slot_at(of, r.group, weights++, PHASE_WEIGHTS);
    s->slots[s->n++] = (struct slot){.phase = PHASE_UPDATE, .microbatch = of->microbatches - 1};
    for (int i = 0; i < s->n; i++)
        s->slots[i].receive = i ? i - 1 : 0;
}

// ---- one stage ----------------------------------------------------------------------------------

static bool has_phase(const struct schedule_of *of, enum phase phase)
{
    bool weights = of->kind == JOB_ZERO_BUBBLE && of->stages > 1;
    return phase == PHASE_FORWARD ||
           (of->program == PROGRAM_TRAIN && (phase == PHASE_BACKWARD || weights));
}

// done[phase][chunk] is how many microbatches have passed it.
static int check_slot(const struct schedule_of *of, int *const *done, const struct slot *t,
                      struct err *e)
{
    static const enum phase needs[] = {
        [PHASE_BACKWARD] = PHASE_FORWARD, [PHASE_WEIGHTS] = PHASE_BACKWARD};
    if (t->chunk < 0 || t->chunk >= of->chunks)
        return err_set(e, ERR_INTERNAL, "schedule: chunk %d of %d", t->chunk, of->chunks);
    if (t->microbatch != done[t->phase][t->chunk])
        return err_set(e, ERR_INTERNAL, "schedule: %s of microbatch %d out of order",
                       phase_name(t->phase), t->microbatch);
    if (t->phase != PHASE_FORWARD && t->microbatch >= done[needs[t->phase]][t->chunk])
        return err_set(e, ERR_INTERNAL, "schedule: %s of microbatch %d before its %s",
                       phase_name(t->phase), t->microbatch, phase_name(needs[t->phase]));
    done[t->phase][t->chunk]++;
    return 0;
}

int schedule_verify(const struct schedule *s, const struct schedule_of *of, struct err *e)
{
    struct arena scratch = {0};
    int *done[PHASE_UPDATE], rc = 0, updates = 0;
    for (int p = 0; p < PHASE_UPDATE; p++)
        done[p] = arena_array(&scratch, int, of->chunks);
    for (int i = 0; i < s->n && !rc; i++) {
        const struct slot *t = &s->slots[i];
        updates += t->phase == PHASE_UPDATE;
        if (t->phase != PHASE_UPDATE)
            rc = check_slot(of, done, t, e);
        else if (i != s->n - 1)
            rc = err_set(e, ERR_INTERNAL, "schedule: the update is not the last slot");
        if (!rc && t->receive > i)
            rc = err_set(e, ERR_INTERNAL, "schedule: slot %d receives in slot %d", i, t->receive);
    }
    for (int p = 0; p < PHASE_UPDATE && !rc; p++)
        for (int c = 0; c < of->chunks && !rc; c++) {
            int want = has_phase(of, (enum phase)p) ? of->microbatches : 0;
            if (done[p][c] != want || updates != 1)
                rc =
                    err_set(e, ERR_INTERNAL, "schedule: %d %s slots of chunk %d for %d, %d updates",
                            done[p][c], phase_name((enum phase)p), c, want, updates);
        }
    arena_clear(&scratch);
    return rc;
}

// ---- all stages together ------------------------------------------------------------------------

struct running {             // one stage
    int at;                  // the slot it is in
    bool computed;           // and sending
    int sent;                // the last slot that has sent; −1: none
    double free;             // when it has computed what it has so far
    int *slot[PHASE_UPDATE]; // chunk · microbatches + microbatch → slot; past the end: none
};
struct schedule_run {
    struct schedule *s;
    const struct schedule_of *of;
    struct running *stage;
    bool buffered; // no send waits for its receiver
    bool orders;   // the receives get their order
};

static void find_slots(struct schedule_run *r, struct arena *scratch)
{
    int all = r->of->microbatches * r->of->chunks;
    r->stage = arena_array(scratch, struct running, r->of->stages);
    for (int i = 0; i < r->of->stages; i++) {
        const struct schedule *s = &r->s[i];
        r->stage[i].sent = -1;
        for (int p = 0; p < PHASE_UPDATE; p++) {
            r->stage[i].slot[p] = arena_array(scratch, int, all);
            for (int k = 0; k < all; k++)
                r->stage[i].slot[p][k] = s->n;
        }
        for (int k = 0; k < s->n; k++) {
            const struct slot *t = &s->slots[k];
            if (t->phase != PHASE_UPDATE)
                r->stage[i].slot[t->phase][t->chunk * r->of->microbatches + t->microbatch] = k;
        }
    }
}

// The slot on the other side of a boundary, and its stage.
struct other {
    int stage, at;
};

// Returns what a slot receives from (`from`) or sends to; stage −1: none.
static struct other find_other(const struct schedule_run *r, int stage, const struct slot *t,
                               bool from)
{
    const struct schedule_of *of = r->of;
    int step = (t->phase == PHASE_FORWARD) == from ? -1 : 1;
    int place = t->chunk * of->stages + stage + step;
    if ((t->phase != PHASE_FORWARD && t->phase != PHASE_BACKWARD) || place < 0 ||
        place >= of->stages * of->chunks)
        return (struct other){.stage = -1};
    struct other o = {.stage = place % of->stages};
    o.at = r->stage[o.stage].slot[t->phase][place / of->stages * of->microbatches + t->microbatch];
    return o;
}

// Returns the time at which a slot's input was computed by its sender; below 0: not yet.
static double find_ready_time(const struct schedule_run *r, int stage, const struct slot *t)
{
    struct other from = find_other(r, stage, t, true);
    if (from.stage < 0)
        return 0;
    return from.at < r->stage[from.stage].at ? r->s[from.stage].slots[from.at].end : -1;
}

static bool can_send(const struct schedule_run *r, int stage, const struct slot *t)
{
    struct other to = find_other(r, stage, t, false);
    if (to.stage < 0)
        return true;
    const struct schedule *s = &r->s[to.stage];
    return to.at < s->n && (r->buffered || s->slots[to.at].receive <= r->stage[to.stage].at);
}

static double find_cost(const struct schedule_of *of, int stage, const struct slot *t)
{
    int64_t layers = of->layers[t->chunk * of->stages + stage];
    double each = (double)(layers ? layers : 1);
    if (t->phase == PHASE_BACKWARD && !has_phase(of, PHASE_WEIGHTS))
        return 2 * each;
    return t->phase == PHASE_UPDATE ? 0 : each;
}

// Returns when a stage is done with what it does next, computing or sending; below 0: it has to wait.
static double find_next_time(const struct schedule_run *r, int stage)
{
    const struct running *now = &r->stage[stage];
    if (now->at == r->s[stage].n)
        return -1;
    const struct slot *t = &r->s[stage].slots[now->at];
    if (now->computed)
        return can_send(r, stage, t) ? t->end : -1;
    double from = find_ready_time(r, stage, t);
    return from < 0 ? -1 : (from > now->free ? from : now->free) + find_cost(r->of, stage, t);
}

// A message takes its place in the order of all starts: its receiver starts to receive behind what it
// has sent so far and what it receives already, and before all that it will send.
static void order_receive(struct schedule_run *r, struct other to)
{
    const struct running *receiver = &r->stage[to.stage];
    struct schedule *s = &r->s[to.stage];
    struct slot *end = &s->slots[to.at];
    int before = s->nreceives ? s->slots[s->receives[s->nreceives - 1]].receive : -1;
    before = before > receiver->sent + 1 ? before : receiver->sent + 1;
    end->receive = end->receive > before ? end->receive : before;
    s->receives[s->nreceives++] = to.at;
}

static void advance_stage(struct schedule_run *r, int stage, double time)
{
    struct running *now = &r->stage[stage];
    struct slot *t = &r->s[stage].slots[now->at];
    if (!now->computed) {
        t->start = time - find_cost(r->of, stage, t);
        now->free = t->end = time;
        now->computed = true;
        return;
    }
    struct other to = find_other(r, stage, t, false);
    if (to.stage >= 0 && r->orders)
        order_receive(r, to);
    if (to.stage >= 0)
        now->sent = now->at;
    now->at++;
    now->computed = false;
}

static int report_deadlock(const struct schedule_run *r, int stage, struct err *e)
{
    const struct running *now = &r->stage[stage];
    const struct slot *t = &r->s[stage].slots[now->at];
    return err_set(e, ERR_INTERNAL, "schedule: deadlock: stage %d waits %s %s of microbatch %d",
                   stage, now->computed ? "to send the" : "for what it needs in the",
                   phase_name(t->phase), t->microbatch);
}

static int run_all(struct schedule_run *r, struct err *e)
{
    for (int next = 0; next >= 0;) {
        double least = 0, time;
        next = -1;
        for (int i = 0; i < r->of->stages; i++)
            if ((time = find_next_time(r, i)) >= 0 && (next < 0 || time < least)) {
                least = time;
                next = i;
            }
        if (next >= 0)
            advance_stage(r, next, least);
    }
    for (int i = 0; i < r->of->stages; i++)
        if (r->stage[i].at < r->s[i].n)
            return report_deadlock(r, i, e);
    return 0;
}

static int find_stash_peak(const struct schedule *s, const struct schedule_of *of)
{
    enum phase last = has_phase(of, PHASE_WEIGHTS) ? PHASE_WEIGHTS : PHASE_BACKWARD;
    int now = 0, peak = 0;
    for (int i = 0; i < s->n; i++) {
        now += s->slots[i].phase == PHASE_FORWARD ? 1 : s->slots[i].phase == last ? -1 : 0;
        peak = now > peak ? now : peak;
    }
    return peak;
}

// Checks that what one stage sends to another in one phase is received in the order in which it is
// sent.
static int check_streams(const struct schedule_run *r, struct err *e)
{
    for (int i = 0; i < r->of->stages; i++) {
        const struct slot *last[PHASE_UPDATE] = {NULL};
        for (int k = 0; k < r->s[i].n; k++) {
            const struct slot *t = &r->s[i].slots[k];
            struct other to = find_other(r, i, t, false);
            if (to.stage < 0 || to.at == r->s[to.stage].n)
                continue;
            const struct slot *end = &r->s[to.stage].slots[to.at], *before = last[t->phase];
            if (before && (before > end || before->receive > end->receive))
                return err_set(e, ERR_INTERNAL,
                               "schedule: stage %d takes %s of microbatch %d in another order than "
                               "stage %d sends it",
                               to.stage, phase_name(t->phase), t->microbatch, i);
            last[t->phase] = end;
        }
    }
    return 0;
}

int schedule_simulate(struct schedule *stages, const struct schedule_of *of,
                      struct schedule_cost *out, struct err *e)
{
    struct arena scratch = {0};
    struct schedule_run r = {.s = stages, .of = of};
    double busy = 0;
    find_slots(&r, &scratch);
    *out = (struct schedule_cost){0};
    int rc = check_streams(&r, e);
    rc = rc ? rc : run_all(&r, e);
    for (int i = 0; i < of->stages && !rc; i++) {
        int stash = find_stash_peak(&stages[i], of);
        out->makespan = r.stage[i].free > out->makespan ? r.stage[i].free : out->makespan;
        out->peak_stash = stash > out->peak_stash ? stash : out->peak_stash;
        for (int k = 0; k < stages[i].n; k++)
            busy += stages[i].slots[k].end - stages[i].slots[k].start;
    }
    if (!rc && out->makespan > 0)
        out->bubble = 1 - busy / (of->stages * out->makespan);
    arena_clear(&scratch);
    return rc;
}

// ---- receives -----------------------------------------------------------------------------------

// The last slot before `at` that begins earlier than `time`; −1: none.
static int find_slot_before(const struct schedule *s, int at, double time)
{
    while (--at >= 0 && s->slots[at].start >= time)
        ;
    return at;
}

// Starts each receive before the time at which its message comes if no sender waits for a receiver;
// then none has to. Messages of one stream are received as they are sent.
static void place_receives(struct schedule_run *r, int stage)
{
    int first[PHASE_UPDATE];
    for (int p = 0; p < PHASE_UPDATE; p++)
        first[p] = INT32_MAX;
    for (int i = r->s[stage].n - 1; i >= 0; i--) {
        const struct slot *t = &r->s[stage].slots[i];
        struct other to = find_other(r, stage, t, false);
        if (to.stage < 0)
            continue;
        struct slot *end = &r->s[to.stage].slots[to.at];
        end->receive = find_slot_before(&r->s[to.stage], to.at, t->end);
        if (end->receive > first[t->phase])
            end->receive = first[t->phase];
        first[t->phase] = end->receive;
    }
}

int schedule_build(struct schedule *stages, struct arena *a, const struct schedule_of *of,
                   struct err *e)
{
    struct arena scratch = {0};
    bool early = of->kind == JOB_1F1B || of->kind == JOB_GPIPE; // a slot ahead is early enough
    struct schedule_run r = {.s = stages, .of = of, .buffered = true};
    int rc = 0;
    for (int i = 0; i < of->stages; i++)
        build_stage(&stages[i], a, of, i);
    find_slots(&r, &scratch);
    if (!early)
        rc = run_all(&r, e);
    for (int i = 0; i < of->stages && !early && !rc; i++)
        place_receives(&r, i);
    r.buffered = false;
    r.orders = true;
    find_slots(&r, &scratch);
    if (!rc)
        rc = run_all(&r, e);
    arena_clear(&scratch);
    return rc;
}
