// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms. See contest.h.
#include "kernels/cuda/contest.h"

#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/configs.h"

int contest_open(struct contest *c, struct device *d, struct err *e)
{
    int rc = CUDA(d, NULL, e, cudaEventCreate(&c->begin));
    return rc ? rc : CUDA(d, NULL, e, cudaEventCreate(&c->end));
}

void contest_close(struct contest *c)
{
    if (c->begin)
        cudaEventDestroy(c->begin);
    if (c->end)
        cudaEventDestroy(c->end);
}

// ---- the stopwatch -----------------------------------------------------------------------------

// MOST_US: of a product's first runs, by the device's clock. Candidates come best first: what is
// not reached by then is slower, or too slow to be tried for all of a program's products.
// WARM_US: of load ahead of a device's first contest, so that its clocks are those of a training;
// by the device's clock or the host's, and no more runs than WARM_RUNS.
enum { ROUNDS = 3, MOST_RUNS = 10, ROUND_US = 2000, MOST_US = 500000 };
enum { WARM_US = 500000, WARM_RUNS = 512, WARM_ROUND = 64 };

// How often a round runs what takes so long once.
static int count_runs(double us)
{
    return us > 0 && us * MOST_RUNS > ROUND_US ? (int)(ROUND_US / us) + 1 : MOST_RUNS;
}

// Notes the end of what is timed, waits for it and tells how long it took.
static int stop_watch(struct contest *c, struct stream_q *q, float *ms, struct err *e)
{
    int rc = CUDA(q->device, q, e, cudaEventRecord(c->end, q->stream));
    rc = rc ? rc : CUDA(q->device, q, e, cudaEventSynchronize(c->end));
    return rc ? rc : CUDA(q->device, q, e, cudaEventElapsedTime(ms, c->begin, c->end));
}

static int time_round(struct contest *c, struct stream_q *q, int runs,
                      int (*run)(void *ctx, struct err *e), void *ctx, double *us, struct err *e)
{
    float ms = 0;
    int rc = CUDA(q->device, q, e, cudaEventRecord(c->begin, q->stream));
    for (int i = 0; i < runs && !rc; i++)
        rc = run(ctx, e);
    if (!rc)
        rc = stop_watch(c, q, &ms, e);
    *us = (double)ms * 1000 / runs;
    return rc;
}

int contest_time(struct contest *c, struct stream_q *q, int (*run)(void *ctx, struct err *e),
                 void *ctx, double *us, struct err *e)
{
    double once = 0;
    int rc = run(ctx, e); // what is loaded or made at the first run is not timed
    rc = rc ? rc : time_round(c, q, 1, run, ctx, &once, e);
    *us = 0;
    for (int i = 0; i < ROUNDS && !rc; i++) {
        double now;
        rc = time_round(c, q, count_runs(once), run, ctx, &now, e);
        *us = i == 0 || now < *us ? now : *us;
    }
    return rc;
}

struct trial {
    struct contest *c;
    struct stream_q *q;
    const struct product *p;
    struct plan *plan;
    cublasLtMatmulAlgo_t algo;
};

static int run_trial(void *ctx, struct err *e)
{
    const struct trial *t = ctx;
    return plan_ran(t->q, plan_launch(t->plan, t->q, t->p, &t->algo), e);
}

// Puts the device under load, once, with the first of the plan's algorithms that runs.
static int warm_up(struct trial *t, struct err *e)
{
    const int64_t began = clock_mono_ns();
    double spent = 0, us = 0;
    bool cold = !t->c->warm;
    int rc = 0;
    for (int i = 0; i < t->plan->n && !t->c->warm && !rc; i++) {
        t->algo = t->plan->algo[i];
        cublasStatus_t said = plan_launch(t->plan, t->q, t->p, &t->algo);
        t->c->warm = !plan_declined(t->q, said);
        rc = t->c->warm ? plan_ran(t->q, said, e) : 0;
    }
    cold = cold && t->c->warm;
    for (int runs = 0; cold && runs < WARM_RUNS && spent < WARM_US && !rc; runs += WARM_ROUND) {
        rc = time_round(t->c, t->q, WARM_ROUND, run_trial, t, &us, e);
        const double host = (double)(clock_mono_ns() - began) / 1000;
        spent = spent + us * WARM_ROUND > host ? spent + us * WARM_ROUND : host;
    }
    return rc;
}

// ---- one run of each ---------------------------------------------------------------------------

// Beside a plan's algorithms, in their order: the fastest first.
struct timed {
    double us[PLAN_ALGOS]; // one run
    int place[PLAN_ALGOS]; // among those that the library named and that may be used, from 0; from
                           // `named` on it is one that was not named
    int named, enumerated; // how many were
    cublasLtMatmulAlgo_t first; // of those named that ran
    double first_us;
    int first_place; // named: none ran
};

// Puts the trial's algorithm where its time says. Of a full plan the slowest leaves.
static void insert_algo(struct plan *plan, struct timed *to, const struct trial *t, double us,
                        int place)
{
    int i = plan->n;
    if (i == PLAN_ALGOS && us >= to->us[--i])
        return;
    for (; i > 0 && to->us[i - 1] > us; i--) {
        to->us[i] = to->us[i - 1];
        to->place[i] = to->place[i - 1];
        plan->algo[i] = plan->algo[i - 1];
    }
    to->us[i] = us;
    to->place[i] = place;
    plan->algo[i] = t->algo;
    plan->n += plan->n < PLAN_ALGOS;
}

// Times one run of the trial's algorithm. *ran false: it declined.
static int time_once(struct trial *t, double *us, bool *ran, struct err *e)
{
    cublasStatus_t said = plan_launch(t->plan, t->q, t->p, &t->algo); // this one loads the kernel
    *ran = !plan_declined(t->q, said);
    int rc = *ran ? plan_ran(t->q, said, e) : 0;
    return rc || !*ran ? rc : time_round(t->c, t->q, 1, run_trial, t, us, e);
}

// Times one run of each candidate, and sorts them by it. Those that decline are left out, and those
// behind the budget.
static int sort_named(struct trial *t, struct timed *to, struct err *e)
{
    struct plan *plan = t->plan;
    const int n = to->named = to->first_place = plan->n;
    double now = 0, spent = 0;
    bool ran;
    plan->n = 0; // never more than what was looked at
    for (int i = 0; i < n && spent < MOST_US; i++) {
        t->algo = plan->algo[i];
        int rc = time_once(t, &now, &ran, e);
        if (rc)
            return rc;
        if (!ran)
            continue;
        insert_algo(plan, to, t, now, i);
        if (to->first_place == n) {
            to->first = t->algo;
            to->first_us = now;
            to->first_place = i;
        }
        spent += 2 * now;
    }
    return 0;
}

// ---- beyond what the library names -------------------------------------------------------------

struct budget {
    int64_t began_ns;
    double most_us,
        device_us; // the host's clock counts, or the device's, whichever went on further
};

static double get_spent(const struct budget *b)
{
    const double host = (double)(clock_mono_ns() - b->began_ns) / 1000;
    return host > b->device_us ? host : b->device_us;
}

static bool is_spent(const struct budget *b)
{
    return get_spent(b) >= b->most_us;
}

static int try_config(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                      struct err *e)
{
    double us = 0;
    bool ran;
    if (!plan_takes(t->plan, t->p, &t->algo))
        return 0;
    configs_note(all, &t->algo);
    int rc = time_once(t, &us, &ran, e);
    if (rc || !ran)
        return rc;
    insert_algo(t->plan, to, t, us, to->named + to->enumerated++);
    b->device_us += 2 * us;
    return 0;
}

// Those beside the fastest so far, while that finds faster ones, then a sample of all.
static int try_configs(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                       struct err *e)
{
    double before = 0;
    int rc = 0;
    for (int i = 0; i < t->plan->n; i++)
        configs_note(all, &t->plan->algo[i]);
    while (!rc && t->plan->n && (before == 0 || to->us[0] < before)) {
        const cublasLtMatmulAlgo_t middle = t->plan->algo[0];
        before = to->us[0];
        while (!rc && !is_spent(b) && configs_near(all, &middle, &t->algo))
            rc = try_config(t, to, all, b, e);
    }
    while (!rc && !is_spent(b) && configs_draw(all, &t->algo))
        rc = try_config(t, to, all, b, e);
    return rc;
}

static int enumerate(struct trial *t, struct timed *to, struct err *e)
{
    const struct device *d = t->q->device;
    const double left =
        d->switches[SWITCH_ENUMERATE_ALL] * 1000.0 - t->c->enumerated_us; // of all products
    struct budget b = {.began_ns = clock_mono_ns(),
                       .most_us = d->switches[SWITCH_ENUMERATE] * 1000.0};
    struct configs *all = NULL;
    b.most_us = b.most_us < left ? b.most_us : left;
    if (!(b.most_us > 0))
        return 0;
    int rc = configs_open(t->plan->lt, t->p, d->deterministic, d->major >= 9, &all, e);
    rc = rc ? rc : try_configs(t, to, all, &b, e);
    configs_close(all);
    t->c->enumerated_us += get_spent(&b);
    if (!rc)
        log_info("cuda", "%s: %d configurations timed beside the library's %d%s", t->plan->key,
                 to->enumerated, to->named, is_spent(&b) ? ", until the time was over" : "");
    return rc;
}

// ---- the few fastest, in turns -----------------------------------------------------------------

// Leaves the fastest of one run, and behind them the one that the library named first, which tells
// what its order is worth. Returns where that one is; −1: none that it named ran.
static int keep_finalists(struct plan *plan, struct timed *t, int most)
{
    plan->n = plan->n < most ? plan->n : most;
    if (t->first_place == t->named)
        return -1;
    for (int i = 0; i < plan->n; i++)
        if (t->place[i] == t->first_place)
            return i;
    const int last = plan->n < PLAN_ALGOS ? plan->n++ : PLAN_ALGOS - 1;
    t->us[last] = t->first_us;
    t->place[last] = t->first_place;
    plan->algo[last] = t->first;
    return last;
}

// The place of the fastest is its own among those that the library named, or "enumerated".
static void log_choice(const struct plan *plan, const struct timed *t, int fastest, double us,
                       double first_us)
{
    const cublasLtMatmulAlgo_t *a = &plan->algo[0];
    char place[16] = "enumerated", first[64] = "the library names none";
    if (t->place[fastest] < t->named)
        snprintf(place, sizeof place, "%d", t->place[fastest] + 1);
    if (first_us > 0)
        snprintf(first, sizeof first, "the library's first %.1f us", first_us);
    log_info("cuda",
             "%s: chosen %s of %d (id %u, tile %u, stages %u, split %u, cluster %u, swizzle %u, "
             "option %u): %.1f us, %s",
             plan->key, place, t->named + t->enumerated, config_read(a, CUBLASLT_ALGO_CONFIG_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
             config_read(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
             config_read(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION), us, first);
}

// Times the finalists again, with more runs. They take turns: a device that grows warm under the
// load clocks lower, and that must not count against those that come late.
static int time_finalists(struct trial *t, const struct timed *timed, double *best, struct err *e)
{
    struct plan *plan = t->plan;
    int rc = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < plan->n && !rc; i++) {
            double now = 0;
            t->algo = plan->algo[i];
            rc = time_round(t->c, t->q, count_runs(timed->us[i]), run_trial, t, &now, e);
            if (round == 0 || now < best[i])
                best[i] = now;
        }
    return rc;
}

// Among so many the clock's luck would decide, so the few that were fastest in one run are timed
// with care.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e)
{
    struct trial t = {.c = c, .q = q, .p = p, .plan = plan};
    struct timed timed = {0};
    double best[PLAN_ALGOS] = {0};
    int fastest = 0, first = -1, rc = warm_up(&t, e);
    rc = rc ? rc : sort_named(&t, &timed, e);
    rc = rc ? rc : enumerate(&t, &timed, e);
    if (!rc) {
        first = keep_finalists(plan, &timed, q->device->switches[SWITCH_FINALISTS]);
        rc = time_finalists(&t, &timed, best, e);
    }
    for (int i = 1; i < plan->n && !rc; i++)
        fastest = best[i] < best[fastest] ? i : fastest;
    plan->algo[0] = plan->algo[fastest];
    if (plan->n && !rc) {
        *us = best[fastest];
        log_choice(plan, &timed, fastest, *us, first < 0 ? 0 : best[first]);
    }
    plan->n = plan->n > 0;
    plan->at = 0;
    return rc;
}
