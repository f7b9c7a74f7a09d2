// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms. See contest.h.
#include "kernels/cuda/contest.h"

#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"

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

// MOST_US: what the first runs of a product's candidates may take together, by the device's clock.
// They come best first, so one that is not reached is hardly the fastest. WARM_US: how long a
// device is put under load before its first contest, so that its clocks are those of a training; by
// the device's clock or the host's, and by no more than WARM_RUNS runs.
enum { ROUNDS = 3, MOST_RUNS = 10, ROUND_US = 2000, MOST_US = 500000 };
enum { WARM_US = 500000, WARM_RUNS = 512, WARM_ROUND = 64 };

// Returns how many runs of `us` µs make a round.
static int count_runs(double us)
{
    return us > 0 && us * MOST_RUNS > ROUND_US ? (int)(ROUND_US / us) + 1 : MOST_RUNS;
}

static int time_round(struct contest *c, struct stream_q *q, int runs,
                      int (*run)(void *ctx, struct err *e), void *ctx, double *us, struct err *e)
{
    float ms = 0;
    int rc = CUDA(q->device, q, e, cudaEventRecord(c->begin, q->stream));
    for (int i = 0; i < runs && !rc; i++)
        rc = run(ctx, e);
    if (!rc)
        rc = CUDA(q->device, q, e, cudaEventRecord(c->end, q->stream));
    if (!rc)
        rc = CUDA(q->device, q, e, cudaEventSynchronize(c->end));
    if (!rc)
        rc = CUDA(q->device, q, e, cudaEventElapsedTime(&ms, c->begin, c->end));
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

// ---- the contest -------------------------------------------------------------------------------

// An algorithm that ran. Once all were timed, the fastest comes first.
struct candidate {
    cublasLtMatmulAlgo_t algo;
    int place; // among those that the library named
    double us; // of one run; of a finalist, in the end, of its best round
};

// Times one run of each of the plan's algorithms and sorts those that ran by it. Leaves out those
// that decline, and those that are not reached within MOST_US.
static int sort_candidates(struct trial *t, struct candidate ran[PLAN_ALGOS], int *n, struct err *e)
{
    double us = 0, spent = 0;
    for (int place = 0; place < t->plan->n && spent < MOST_US; place++) {
        t->algo = t->plan->algo[place];
        cublasStatus_t said = plan_launch(t->plan, t->q, t->p, &t->algo); // it loads the kernel
        if (plan_declined(t->q, said))
            continue;
        int rc = plan_ran(t->q, said, e);
        if (!rc)
            rc = time_round(t->c, t->q, 1, run_trial, t, &us, e);
        if (rc)
            return rc;
        int i = (*n)++;
        for (; i > 0 && ran[i - 1].us > us; i--)
            ran[i] = ran[i - 1];
        ran[i] = (struct candidate){t->algo, place, us};
        spent += 2 * us;
    }
    return 0;
}

// Keeps at most `most` of the fastest, and behind them the one that the library named first, which
// shows what the library's order is worth. Returns where that one is.
static int keep_finalists(struct candidate ran[PLAN_ALGOS], int *n, int most)
{
    int first = 0;
    for (int i = 1; i < *n; i++)
        first = ran[i].place < ran[first].place ? i : first;
    *n = *n < most ? *n : most;
    if (first < *n)
        return first;
    ran[*n] = ran[first];
    return (*n)++;
}

// Times the finalists with more runs. They take turns: a device that grows warm under the load
// clocks lower, and that must not count against those that come late.
static int time_finalists(struct trial *t, struct candidate *finalist, int n, struct err *e)
{
    double best[PLAN_ALGOS], us = 0;
    int rc = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n && !rc; i++) {
            t->algo = finalist[i].algo;
            rc = time_round(t->c, t->q, count_runs(finalist[i].us), run_trial, t, &us, e);
            best[i] = round == 0 || us < best[i] ? us : best[i];
        }
    for (int i = 0; i < n && !rc; i++)
        finalist[i].us = best[i];
    return rc;
}

static uint32_t read_setting(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t id,
                             size_t bytes)
{
    uint32_t value = 0;
    size_t n = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(a, id, &value, bytes, &n);
    return value;
}

static void log_choice(const struct plan *plan, int named, const struct candidate *best,
                       const struct candidate *first)
{
#define SETTING(id, type) read_setting(&best->algo, CUBLASLT_ALGO_CONFIG_##id, sizeof(type))
    log_info("cuda",
             "%s: chosen %d of %d (id %u, tile %u, stages %u, split %u, cluster %u, swizzle %u, "
             "option %u): %.1f us, the library's first %.1f us",
             plan->key, best->place + 1, named, SETTING(ID, int32_t), SETTING(TILE_ID, uint32_t),
             SETTING(STAGES_ID, uint32_t), SETTING(SPLITK_NUM, uint32_t),
             SETTING(CLUSTER_SHAPE_ID, uint16_t), SETTING(CTA_SWIZZLING, uint32_t),
             SETTING(CUSTOM_OPTION, uint32_t), best->us, first->us);
#undef SETTING
}

// One run each does not decide among so many, since the fastest would be the luckiest: so the few
// that were fastest are timed with care.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e)
{
    struct trial t = {.c = c, .q = q, .p = p, .plan = plan};
    struct candidate ran[PLAN_ALGOS];
    int n = 0, first = 0, fastest = 0, rc = warm_up(&t, e);
    rc = rc ? rc : sort_candidates(&t, ran, &n, e);
    if (!rc && n) {
        first = keep_finalists(ran, &n, q->device->switches[SWITCH_FINALISTS]);
        rc = time_finalists(&t, ran, n, e);
    }
    if (rc)
        return rc;
    for (int i = 1; i < n; i++)
        fastest = ran[i].us < ran[fastest].us ? i : fastest;
    if (n) {
        log_choice(plan, plan->n, &ran[fastest], &ran[first]);
        *us = ran[fastest].us;
        plan->algo[0] = ran[fastest].algo;
    }
    plan->n = n > 0;
    plan->at = 0;
    return 0;
}
