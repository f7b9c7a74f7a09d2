// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms. See contest.h.
#include "kernels/cuda/contest.h"

#include <math.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/configs.h"
#include "kernels/cuda/witness.h"

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
    suspects_close(&c->suspects);
}

// ---- the stopwatch -----------------------------------------------------------------------------

// MOST_US: of a product's first runs, by the device's clock. Candidates come best first: what is
// not reached by then is slower, or too slow to be tried for all of a program's products.
// WARM_US: of load ahead of a device's first contest, so that its clocks are those of a training;
// by the device's clock or the host's, and no more runs than WARM_RUNS.
enum { ROUNDS = 3, MOST_RUNS = 10, ROUND_US = 2000, MOST_US = 500000 };
enum { WARM_US = 500000, WARM_RUNS = 512, WARM_ROUND = 64 };
enum { CONFIG_TEXT = 160 };

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
    struct witness *witness; // of the first algorithm that the library named and that runs
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

// What an algorithm is set to, for people.
static void print_config(const cublasLtMatmulAlgo_t *a, char text[CONFIG_TEXT])
{
    snprintf(text, CONFIG_TEXT,
             "id %u, tile %u, stages %u, split %u, cluster %u, swizzle %u, option %u",
             config_read(a, CUBLASLT_ALGO_CONFIG_ID), config_read(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
             config_read(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
             config_read(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
             config_read(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
}

// Says of a device that a configuration has left useless which one it was, and how to go on.
static int blame_config(const struct trial *t, struct err *e)
{
    struct device *d = t->q->device;
    const struct suspects *s = &t->c->suspects;
    const struct err said = d->failed;
    char config[CONFIG_TEXT];
    print_config(&t->algo, config);
    (void)err_set(
        &d->failed, said.code,
        "%.240s; that was a configuration which cublaslt did not name (%s) of the product "
        "%.120s, and this process can do nothing more with the device. %s%.160s%s; "
        "WEFT_CUDA_ENUMERATE=0 tries none",
        said.text, config, t->plan->key,
        s->trial ? "Run again it is left out, as " : "It is tried again by the next, as no ",
        s->trial ? s->folder : "file", s->trial ? " says" : " could say so");
    return err_set(e, d->failed.code, "%s", d->failed.text);
}

// Does `act` with the trial's algorithm, which the library did not name. *ran false: it cannot be
// done, or another process did not survive it.
static int try_suspect(struct trial *t, int (*act)(struct trial *t, void *ctx, struct err *e),
                       void *ctx, bool *ran, struct err *e)
{
    struct suspects *s = &t->c->suspects;
    struct err why = {0};
    char choice[CHOICE_SIZE];
    choice_print(&t->algo, choice);
    *ran = false;
    if (!suspects_begin(s, t->plan->key, choice)) {
        log_warn("cuda", "%s: a configuration that ended a process is left out: %s/suspect-*",
                 t->plan->key, s->folder);
        return 0;
    }
    int rc = act(t, ctx, &why);
    if (t->q->device->failed.code)
        return blame_config(t, e);
    suspects_end(s);
    *ran = !rc;
    if (rc)
        log_warn("cuda", "%s: a configuration is left out: %s", t->plan->key, why.text);
    return 0;
}

struct once {
    double us;
    bool ran;
};

static int act_once(struct trial *t, void *ctx, struct err *e)
{
    struct once *once = ctx;
    return time_once(t, &once->us, &once->ran, e);
}

static int act_compare(struct trial *t, void *ctx, struct err *e)
{
    return witness_compare(t->witness, t->q, run_trial, t, ctx, e);
}

// Whether what takes so long may be one of the few fastest.
static bool may_be_finalist(const struct trial *t, const struct timed *to, double us)
{
    const int most = t->q->device->switches[SWITCH_FINALISTS];
    return t->plan->n < most || us < to->us[most - 1];
}

// Compares the numbers of the trial's algorithm with those of the first that the library named.
// *good false: they are others, or it did not run.
static int judge_config(struct trial *t, bool *good, struct err *e)
{
    char config[CONFIG_TEXT];
    double off = 0;
    int rc = try_suspect(t, act_compare, &off, good, e);
    if (rc || !*good || off <= 1)
        return rc;
    *good = false;
    t->c->wrong++;
    print_config(&t->algo, config);
    log_warn("cuda",
             "%s: wrong numbers of a configuration that cublaslt did not name (%s): off by %.3g "
             "times what may be; it is dropped, number %d of this device",
             t->plan->key, config, off, t->c->wrong);
    return 0;
}

static int try_config(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                      struct err *e)
{
    struct once once = {0};
    bool good;
    if (!plan_takes(t->plan, t->p, &t->algo))
        return 0;
    configs_note(all, &t->algo);
    int rc = try_suspect(t, act_once, &once, &good, e);
    if (rc || !good || !once.ran)
        return rc;
    b->device_us += 2 * once.us;
    if (may_be_finalist(t, to, once.us)) // who is not now will not be later
        rc = judge_config(t, &good, e);
    if (!rc && good)
        insert_algo(t->plan, to, t, once.us, to->named + to->enumerated);
    to->enumerated++;
    return rc;
}

// Those beside the fastest so far, while that finds faster ones.
static int climb(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                 struct err *e)
{
    double before = INFINITY;
    int rc = 0;
    while (!rc && !is_spent(b) && to->us[0] < before) {
        const cublasLtMatmulAlgo_t middle = t->plan->algo[0];
        before = to->us[0];
        while (!rc && !is_spent(b) && configs_near(all, &middle, &t->algo))
            rc = try_config(t, to, all, b, e);
    }
    return rc;
}

// From the fastest of those named, then from each of a sample of all that is the fastest so far.
static int try_configs(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                       struct err *e)
{
    for (int i = 0; i < t->plan->n; i++)
        configs_note(all, &t->plan->algo[i]);
    int rc = climb(t, to, all, b, e);
    while (!rc && !is_spent(b) && configs_draw(all, &t->algo)) {
        const double before = to->us[0];
        rc = try_config(t, to, all, b, e);
        if (!rc && to->us[0] < before)
            rc = climb(t, to, all, b, e);
    }
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
    if (!(b.most_us > 0) || to->first_place == to->named)
        return 0;
    t->algo = to->first;
    int rc = witness_open(t->q, t->p, run_trial, t, &t->witness, e);
    rc = rc ? rc : configs_open(t->plan->lt, t->p, d->deterministic, d->major >= 9, &all, e);
    rc = rc ? rc : try_configs(t, to, all, &b, e);
    configs_close(all);
    witness_close(t->witness);
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
    char place[16] = "enumerated", first[64] = "the library names none", config[CONFIG_TEXT];
    if (t->place[fastest] < t->named)
        snprintf(place, sizeof place, "%d", t->place[fastest] + 1);
    if (first_us > 0)
        snprintf(first, sizeof first, "the library's first %.1f us", first_us);
    print_config(&plan->algo[fastest], config);
    log_info("cuda", "%s: chosen %s of %d (%s): %.1f us, %s", plan->key, place,
             t->named + t->enumerated, config, us, first);
}

struct round {
    int runs;
    double us;
};

static int act_round(struct trial *t, void *ctx, struct err *e)
{
    struct round *r = ctx;
    return time_round(t->c, t->q, r->runs, run_trial, t, &r->us, e);
}

// Times the finalists again, with more runs. They take turns: a device that grows warm under the
// load clocks lower, and that must not count against those that come late.
static int time_finalists(struct trial *t, const struct timed *timed, double *best, struct err *e)
{
    struct plan *plan = t->plan;
    int rc = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < plan->n && !rc; i++) {
            if (round && isinf(best[i]))
                continue; // it did not run
            struct round r = {.runs = count_runs(timed->us[i])};
            bool ran = true;
            t->algo = plan->algo[i];
            rc = timed->place[i] < timed->named ? act_round(t, &r, e)
                                                : try_suspect(t, act_round, &r, &ran, e);
            if (!ran)
                r.us = INFINITY;
            if (round == 0 || r.us < best[i] || isinf(r.us))
                best[i] = r.us;
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
    if (plan->n && !rc) {
        *us = best[fastest];
        log_choice(plan, &timed, fastest, *us, first < 0 ? 0 : best[first]);
        plan->algo[0] = plan->algo[fastest];
    }
    plan->n = plan->n > 0;
    plan->at = 0;
    return rc;
}
