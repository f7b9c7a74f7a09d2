// SPDX-License-Identifier: Apache-2.0
// A double of training for the tests of the process around it: steps that agree over the link's
// keys instead of a collective, no checkpoint. Linked with the true main.c into
// tests/weft-rank-double.
//
// WEFT_DOUBLE="KIND:RANK:STEP" makes that rank, at that step, do KIND: kill (SIGKILL to itself),
// stop (SIGSTOP), data (fail with ERR_DATA), repeat (as kill, while the others hear of it in a
// collective from each other, in a few words). WEFT_DOUBLE_MS is the length of a step.
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/job/job.h"
#include "worker/rank/link/rank_link.h"
#include "worker/rank/train/train.h"

static int misbehave(const struct assignment *a, int64_t step, struct err *e)
{
    char kind[16] = "";
    int rank = -1;
    long long when = -1;
    const char *order = getenv("WEFT_DOUBLE");
    if (!order || sscanf(order, "%15[a-z]:%d:%lld", kind, &rank, &when) != 3 || when != step)
        return 0;
    bool repeats = !strcmp(kind, "repeat");
    if (rank != a->rank)
        return !repeats ? 0
                        : err_set(e, ERR_PEER, "all_reduce #%lld: rank %d gave up: rank %d on ho",
                                  when, a->ranks - rank - a->rank, rank);
    if (repeats || !strcmp(kind, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(kind, "stop"))
        kill(getpid(), SIGSTOP);
    return strcmp(kind, "data") ? 0 : err_set(e, ERR_DATA, "the file x is too short");
}

// Every rank's stop bit, or-ed: 1, 0, or negative with the error.
static int agree(const struct assignment *a, struct link *l, int64_t step, bool stop, struct err *e)
{
    char key[64], value[8];
    int any = 0;
    atomic_fetch_add(&a->page->collective_entered, 1);
    snprintf(a->page->collective_text, sizeof a->page->collective_text, "control");
    page_beat(a->page);
    snprintf(key, sizeof key, "stop/%lld/%d", (long long)step, a->rank);
    int rc = link_kv_put(l, key, stop ? "1" : "0", e);
    for (int r = 0; r < a->ranks && (!rc || rc == ERR_ABORTED); r++) {
        snprintf(key, sizeof key, "stop/%lld/%d", (long long)step, r);
        do { // a stop asked for ends waiting, yet the bit of this step must be the same for all
            rc = link_kv_get(l, key, value, sizeof value, clock_mono_ns() + 60 * CLOCK_S, e);
            if (rc == ERR_ABORTED)
                clock_sleep_ms(1);
        } while (rc == ERR_ABORTED);
        any |= !rc && value[0] == '1';
    }
    atomic_fetch_add(&a->page->collective_left, 1);
    return rc ? -rc : any;
}

int train_run(const struct assignment *a, struct link *l, enum train_end *end, struct err *e)
{
    const char *ms = getenv("WEFT_DOUBLE_MS");
    struct metrics *m = NULL;
    page_state(a->page, RANK_READY);
    int rc = link_ready(l, "plan", "", clock_mono_ns() + 60 * CLOCK_S, e);
    if (!rc && a->metrics)
        rc = metrics_open(a->metrics, a->attempt, &m, e);
    page_state(a->page, RANK_RUNNING);
    for (int64_t step = a->restore_step + 1; !rc && step <= a->job->train.steps; step++) {
        page_step(a->page, step);
        if ((rc = misbehave(a, step, e)))
            break;
        clock_sleep_ms(ms ? atoi(ms) : 1);
        int any = agree(a, l, step, link_stop_requested(l), e);
        rc = any < 0 ? -any : 0;
        struct step_row row = {.step = step,
                               .steps = a->job->train.steps,
                               .loss = 1,
                               .tokens_per_s = -1,
                               .evaluated = step == a->job->train.steps,
                               .eval_accuracy = 0.875};
        if (!rc && m)
            rc = metrics_write(m, &row, e);
        if (!rc && a->rank == 0)
            link_step_report(l, &row);
        *end = any == 1 ? TRAIN_DRAINED : TRAIN_FINISHED;
        if (any == 1)
            break;
    }
    if (!rc)
        page_state(a->page, RANK_SAVING);
    metrics_close(m);
    return rc;
}
