// SPDX-License-Identifier: Apache-2.0
// The faults of a schedule: what strikes, when, and their end.
#include <string.h>

#include "tests/sim/sim_check.h"

// Which faults a seed draws from. Every tenth seed or so is harmless: then nothing may restart.
static const struct fault_mix mixes[] = {
#define W(name) [FAULT_##name]
    {.name = "gentle",
     .weight = {W(coordinator_crash) = 4, W(coordinator_stop) = 3, W(stream) = 5},
     .gentle = true},
    {.name = "ranks",
     .weight = {W(rank_crash) = 5, W(rank_stop) = 2, W(rank_error) = 2, W(coordinator_crash) = 2,
                W(stream) = 2},
     .often = MOMENT_BARRIER},
    {.name = "power",
     .weight = {W(power) = 4, W(host_power) = 2, W(rank_crash) = 2, W(coordinator_crash) = 1},
     .often = MOMENT_DISK},
    {.name = "network",
     .weight = {W(partition) = 6, W(stream) = 3, W(host_stop) = 3, W(coordinator_stop) = 1,
                W(rank_crash) = 1}},
    {.name = "workers",
     .weight = {W(worker_crash) = 5, W(host_stop) = 2, W(coordinator_crash) = 3, W(stream) = 2,
                W(term) = 1},
     .often = MOMENT_REGISTER},
    {.name = "clients",
     .weight = {W(client) = 8, W(coordinator_crash) = 3, W(rank_crash) = 1, W(stream) = 1}},
    {.name = "database",
     .weight = {W(db) = 4, W(coordinator_crash) = 1, W(rank_crash) = 2, W(partition) = 1}},
    {.name = "storage",
     .weight = {W(power) = 1, W(rank_crash) = 2, W(host_stop) = 1, W(coordinator_crash) = 5,
                W(stream) = 3},
     .eio_per_mille = 60,
     .slow_per_mille = 200,
     .often = MOMENT_DISK},
    {.name = "zombies",
     .weight = {W(host_stop) = 6, W(rank_stop) = 3, W(partition) = 3, W(power) = 1},
     .often = MOMENT_DISK},
    {.name = "all",
     .weight = {W(coordinator_crash) = 3, W(coordinator_stop) = 2, W(stream) = 3, W(partition) = 3,
                W(worker_crash) = 2, W(host_stop) = 2, W(host_power) = 1, W(power) = 2,
                W(rank_crash) = 3, W(rank_stop) = 1, W(rank_error) = 1, W(client) = 3, W(term) = 1},
     .eio_per_mille = 2},
};
// Of seeds from BLAME_SEEDS on.
static const struct fault_mix blame_mix = {
    .name = "blame",
    .weight = {W(rank_crash) = 4, W(rank_stop) = 5, W(rank_error) = 2, W(coordinator_stop) = 3},
    .blames = true};
#undef W

const struct fault_mix *fault_mix_of(uint64_t seed)
{
    return seed >= BLAME_SEEDS ? &blame_mix : &mixes[seed % (sizeof mixes / sizeof *mixes)];
}

// ---- strikes ----
static bool is_on(const struct host *h, const struct proc *p)
{
    for (const struct rank *r = h->living; r; r = r->next)
        if (&r->proc == p)
            return true;
    return p && h->proc == p;
}

static struct host *any_host(struct world *w)
{
    for (int i = 0; i < w->nhosts && w->struck; i++)
        if (is_on(&w->hosts[i], w->struck))
            return &w->hosts[i];
    return &w->hosts[sim_below(&w->sim, w->nhosts)];
}

static struct rank *any_rank(struct world *w)
{
    struct rank *pick = NULL;
    int n = 0;
    for (int i = 0; i < w->nhosts; i++)
        for (struct rank *r = w->hosts[i].living; r; r = r->next)
            if (&r->proc == w->struck)
                return r;
            else if (!r->dying && sim_below(&w->sim, ++n) == 0)
                pick = r;
    return pick;
}

static void coordinator_begins(void *arg, uint64_t life)
{
    struct world *w = arg;
    if (!w->coordinator.proc && w->coordinator.life == life)
        sim_coordinator_start(w);
}

static void coordinator_again(struct world *w)
{
    struct sim *s = &w->sim;
    int64_t ns = sim_chance(s, 250) ? sim_between(s, 5 * S, 20 * S) : sim_between(s, 20 * MS, S);
    sim_after(s, ns, coordinator_begins, w, w->coordinator.life);
}

static void coordinator_crash(struct world *w)
{
    if (!w->coordinator.proc)
        return;
    sim_coordinator_die(w);
    coordinator_again(w);
}

static void coordinator_wakes(void *arg, uint64_t life)
{
    struct world *w = arg;
    if (w->coordinator.proc && w->coordinator.life == life) {
        TRACE(&w->sim, "coordinator", "goes on");
        proc_wake(w->coordinator.proc);
    }
}

static void coordinator_stop(struct world *w)
{
    struct sim *s = &w->sim;
    if (!w->coordinator.proc || w->coordinator.proc->stopped)
        return;
    int64_t ns = sim_between(s, S, 25 * S);
    TRACE(s, "coordinator", "stands still for %.1f s", (double)ns / (double)S);
    proc_stop(w->coordinator.proc);
    sim_after(s, ns, coordinator_wakes, w, w->coordinator.life);
}

static void stream(struct world *w)
{
    struct host *h = any_host(w);
    if (h->conn)
        net_break(h->conn);
}

static void partition(struct world *w)
{
    struct sim *s = &w->sim;
    int way = sim_below(s, 3);
    int64_t ns =
        sim_chance(s, 500) ? sim_between(s, 500 * MS, 9 * S) : sim_between(s, 10 * S, 30 * S);
    net_partition(any_host(w), way != 1, way != 0, ns);
}

static void host_begins(void *arg, uint64_t tag)
{
    (void)tag;
    host_boot(arg);
}

static void worker_crash(struct world *w)
{
    struct sim *s = &w->sim;
    struct host *h = any_host(w);
    host_worker_dies(h);
    sim_after(s, sim_between(s, 20 * MS, sim_chance(s, 200) ? 15 * S : 500 * MS), host_begins, h,
              0);
}

static void host_stops(struct world *w)
{
    struct sim *s = &w->sim;
    host_stop(any_host(w), sim_chance(s, 300) ? sim_between(s, 100 * MS, 9 * S)
                                              : sim_between(s, 10 * S, 30 * S));
}

static void host_power(struct world *w)
{
    struct host *h = any_host(w);
    TRACE(&w->sim, h->name, "power off");
    host_power_off(h);
    sim_after(&w->sim, sim_between(&w->sim, 500 * MS, 15 * S), host_begins, h, 0);
}

static void lose_power(struct world *w)
{
    struct sim *s = &w->sim;
    TRACE(s, "world", "power loss of everything");
    sim_coordinator_die(w);
    for (int i = 0; i < w->nhosts; i++)
        host_power_off(&w->hosts[i]);
    disk_power_loss(&w->disk);
    check_after_power_loss(w);
    for (int i = 0; i < w->nhosts; i++)
        sim_after(s, sim_between(s, 500 * MS, 3 * S), host_begins, &w->hosts[i], 0);
}

static void power(struct world *w)
{
    lose_power(w);
    coordinator_again(w);
}

static void rank_crash(struct world *w)
{
    struct rank *r = any_rank(w);
    if (r)
        rank_fails(r, -11);
}

static void rank_stop(struct world *w)
{
    struct rank *r = any_rank(w);
    struct sim *s = &w->sim;
    bool for_good = sim_chance(s, 500);
    if (!r)
        return;
    rank_hangs(r, for_good ? 0 : sim_between(s, S, 40 * S));
    if (for_good && w->mix->blames)
        check_stopped(r);
}

static void rank_error(struct world *w)
{
    struct rank *r = any_rank(w);
    if (r)
        rank_fails(r, sim_chance(&w->sim, 500) ? 70 : 71);
}

static void db(struct world *w)
{
    if (!w->coordinator.proc)
        return;
    sim_coordinator_die(w);
    if (sim_chance(&w->sim, 300))
        lose_power(w);
    if (sim_chance(&w->sim, 300))
        dbase_delete(w->db);
    else
        dbase_roll_back(w->db);
    TRACE(&w->sim, "world", "the database is an old copy");
    coordinator_again(w);
}

static void term(struct world *w)
{
    host_term(any_host(w));
}

void fault_strike(struct world *w, enum fault_kind k)
{
    static void (*const strike[FAULT_KINDS])(struct world *) = {
        [FAULT_coordinator_crash] = coordinator_crash,
        [FAULT_coordinator_stop] = coordinator_stop,
        [FAULT_stream] = stream,
        [FAULT_partition] = partition,
        [FAULT_worker_crash] = worker_crash,
        [FAULT_host_stop] = host_stops,
        [FAULT_host_power] = host_power,
        [FAULT_power] = power,
        [FAULT_rank_crash] = rank_crash,
        [FAULT_rank_stop] = rank_stop,
        [FAULT_rank_error] = rank_error,
        [FAULT_db] = db,
        [FAULT_client] = client_fault,
        [FAULT_term] = term,
    };
    if (!w->quiet)
        strike[k](w);
}

// ---- the plan ----
static enum fault_kind draw(struct world *w)
{
    const int *weight = w->mix->weight;
    int sum = 0, k = 0;
    for (int i = 0; i < FAULT_KINDS; i++)
        sum += weight[i];
    for (int at = sim_below(&w->sim, sum); at >= weight[k]; k++)
        at -= weight[k];
    return (enum fault_kind)k;
}

static void springs(void *arg, uint64_t kind)
{
    struct world *w = arg;
    fault_strike(w, (enum fault_kind)kind);
    w->struck = NULL;
}

void world_moment(struct world *w, enum moment m, struct proc *of)
{
    struct trap *t = &w->trap;
    struct sim *s = &w->sim;
    if (t->at != m || w->quiet || (m == MOMENT_DISK && t->act != fiber_doing()) ||
        --t->countdown > 0)
        return;
    t->at = MOMENT_NONE;
    w->struck = sim_chance(s, 800) ? of : NULL;
    sim_after(s, sim_chance(s, 500) ? 0 : sim_between(s, 0, 3 * MS), springs, w,
              (uint64_t)t->fault);
}

// Half of the faults wait for a moment that matters.
static void strikes(void *arg, uint64_t kind)
{
    struct world *w = arg;
    struct sim *s = &w->sim;
    if (w->trap.at != MOMENT_NONE || sim_chance(s, 500)) {
        fault_strike(w, (enum fault_kind)kind);
        return;
    }
    static const enum fiber_act acts[] = {ACT_SHARD,  ACT_COMMIT, ACT_COMMIT,
                                          ACT_DELETE, ACT_FENCE,  ACT_PROBE};
    enum moment at = (enum moment)(1 + sim_below(s, MOMENTS - 1));
    if (w->mix->often && sim_chance(s, 500))
        at = w->mix->often;
    w->trap = (struct trap){.at = at,
                            .act = acts[sim_below(s, 6)],
                            .countdown = 1 + sim_below(s, at == MOMENT_REGISTER ? 3 : 10),
                            .fault = (enum fault_kind)kind};
}

void fault_plan(struct world *w)
{
    struct sim *s = &w->sim;
    int n = 2 + sim_below(s, 8);
    for (int i = 0; i < n; i++)
        sim_after(s, sim_between(s, 200 * MS, w->quiet_ns), strikes, w, (uint64_t)draw(w));
}

void fault_heal(struct world *w)
{
    w->quiet = true;
    w->disk.eio_per_mille = 0;
    w->disk.slow_per_mille = 30;
    if (!w->coordinator.proc)
        sim_coordinator_start(w);
}
