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

// MOST_US: what the first runs of a product's candidates may take together, by the device's clock.
// They come best first, so one that is not reached is hardly the fastest. WARM_US: how long a
// device is put under load before its first contest, so that its clocks are those of a training; by
// the device's clock or the host's, and by no more than WARM_RUNS runs.
enum { ROUNDS = 3, MOST_RUNS = 10, ROUND_US = 2000, MOST_US = 500000 };
enum { WARM_US = 500000, WARM_RUNS = 512, WARM_ROUND = 64 };
enum { CONFIG_TEXT = 160 };

// Returns how many runs of `us` µs make a round.
static int count_runs(double us)
{
    return us > 0 && us * MOST_RUNS > ROUND_US ? (int)(ROUND_US / us) + 1 : MOST_RUNS;
}

// Records the end of what is timed, waits for it and returns how long it took.
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
    struct witness *witness; // results of the first algorithm that the library named and that runs
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

// What is known of a plan's algorithms, in the plan's order: the fastest comes first.
struct timed {
    double us[PLAN_ALGOS];      // of one run
    int place[PLAN_ALGOS];      // which of those that the library named; from `named` on: of others
    int named, enumerated;      // how many the library named, and how many others were timed
    cublasLtMatmulAlgo_t first; // the first of those named that ran
    double first_us;
    int first_place; // `named` if none ran
};

// Inserts the trial's algorithm by its time. A full plan loses its slowest.
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

// Times one run of each candidate and sorts them by it. Leaves out those that decline, and those
// that are not reached within MOST_US.
static int sort_named(struct trial *t, struct timed *to, struct err *e)
{
    struct plan *plan = t->plan;
    const int n = to->named = to->first_place = plan->n;
    double now = 0, spent = 0;
    bool ran;
    plan->n = 0; // it is filled again from its begin, which never overtakes the reading
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

// Time that may be spent, by the host's clock or the device's, whichever went on further.
struct budget {
    int64_t began_ns;
    double most_us, device_us;
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

// Prints an algorithm's settings for people.
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

// Adds to the error of a device that a configuration has left useless which one it was, and how to
// go on.
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
        "%.120s, and this process can do nothing more with the device. %s%.160s; "
        "WEFT_CUDA_ENUMERATE=0 tries none",
        said.text, config, t->plan->key,
        s->trial ? "The next run leaves it out, because a file names it in "
                 : "The next run may try it again, because no file names it",
        s->trial ? s->folder : "");
    return err_set(e, d->failed.code, "%s", d->failed.text);
}

// Calls `act` for the trial's algorithm, which the library did not name. *ran false: it failed, or
// was left out because an earlier process did not survive it.
static int try_suspect(struct trial *t, int (*act)(struct trial *t, void *ctx, struct err *e),
                       void *ctx, bool *ran, struct err *e)
{
    struct suspects *s = &t->c->suspects;
    struct err why = {0};
    char choice[CHOICE_SIZE];
    choice_print(&t->algo, choice);
    *ran = false;
    if (!suspects_begin(s, t->plan->key, choice)) {
        log_warn("cuda",
                 "%s: a configuration that ended a process is left out, as %s says; remove that "
                 "file to try it again",
                 t->plan->key, s->path);
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

// Whether an algorithm that takes `us` µs may become a finalist.
static bool may_be_finalist(const struct trial *t, const struct timed *to, double us)
{
    const int most = t->q->device->switches[SWITCH_FINALISTS];
    return t->plan->n < most || us < to->us[most - 1];
}

// Compares the results of the trial's algorithm with those of the first that the library named.
// *good false: they differ, or it did not run.
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
             "times what is allowed; it is dropped, number %d of this device",
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
    if (may_be_finalist(t, to, once.us)) // one that is too slow now stays so
        rc = judge_config(t, &good, e);
    if (!rc && good)
        insert_algo(t->plan, to, t, once.us, to->named + to->enumerated);
    to->enumerated++;
    return rc;
}

// Tries the neighbours of the fastest so far, again and again while one of them is faster.
static int climb_to_fastest(struct trial *t, struct timed *to, struct configs *all,
                            struct budget *b, struct err *e)
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

// Climbs from the fastest of those named, then from each of a sample of all that is the fastest so
// far.
static int try_configs(struct trial *t, struct timed *to, struct configs *all, struct budget *b,
                       struct err *e)
{
    for (int i = 0; i < t->plan->n; i++)
        configs_note(all, &t->plan->algo[i]);
    int rc = climb_to_fastest(t, to, all, b, e);
    while (!rc && !is_spent(b) && configs_draw(all, &t->algo)) {
        const double before = to->us[0];
        rc = try_config(t, to, all, b, e);
        if (!rc && to->us[0] < before)
            rc = climb_to_fastest(t, to, all, b, e);
    }
    return rc;
}

static int enumerate_configs(struct trial *t, struct timed *to, struct err *e)
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

// Keeps those that were fastest in one run, and behind them the first that the library named, which
// shows what the library's order is worth. Returns where that one is. The plan is not empty.
static int keep_finalists(struct plan *plan, struct timed *t, int most)
{
    plan->n = plan->n < most ? plan->n : most;
    for (int i = 0; i < plan->n; i++)
        if (t->place[i] == t->first_place)
            return i;
    const int last = plan->n < PLAN_ALGOS ? plan->n++ : PLAN_ALGOS - 1;
    t->us[last] = t->first_us;
    t->place[last] = t->first_place;
    plan->algo[last] = t->first;
    return last;
}

// The place is the fastest's number among those that the library named, or "enumerated".
static void log_choice(const struct plan *plan, const struct timed *t, int fastest, double us,
                       double first_us)
{
    char place[16] = "enumerated", config[CONFIG_TEXT];
    if (t->place[fastest] < t->named)
        snprintf(place, sizeof place, "%d", t->place[fastest] + 1);
    print_config(&plan->algo[fastest], config);
    log_info("cuda", "%s: chosen %s of %d (%s): %.1f us, the library's first %.1f us", plan->key,
             place, t->named + t->enumerated, config, us, first_us);
}

struct timed_runs {
    int runs;
    double us;
};

static int act_round(struct trial *t, void *ctx, struct err *e)
{
    struct timed_runs *r = ctx;
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
            struct timed_runs r = {.runs = count_runs(timed->us[i])};
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

// One run each does not decide among so many, since the fastest would be the luckiest: so the few
// that were fastest are timed with care.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e)
{
    struct trial t = {.c = c, .q = q, .p = p, .plan = plan};
    struct timed timed = {0};
    double best[PLAN_ALGOS] = {0};
    int fastest = 0, first = 0, rc = warm_up(&t, e);
    rc = rc ? rc : sort_named(&t, &timed, e);
    rc = rc ? rc : enumerate_configs(&t, &timed, e);
    if (!rc && plan->n) {
        first = keep_finalists(plan, &timed, q->device->switches[SWITCH_FINALISTS]);
        rc = time_finalists(&t, &timed, best, e);
    }
    for (int i = 1; i < plan->n && !rc; i++)
        fastest = best[i] < best[fastest] ? i : fastest;
    if (!rc && plan->n) {
        *us = best[fastest];
        log_choice(plan, &timed, fastest, *us, best[first]);
        plan->algo[0] = plan->algo[fastest];
    }
    plan->n = plan->n > 0;
    plan->at = 0;
    return rc;
}
