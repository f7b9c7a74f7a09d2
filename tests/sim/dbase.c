// SPDX-License-Identifier: Apache-2.0
// The coordinator's database: a log of committed transactions and the rows that they add up to.
// What is not committed is nowhere. An old copy is the log up to an older transaction.
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/map.h"
#include "common/ckpt/commit.h"
#include "coordinator/words.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim_check.h"

struct row {
    const char *key;
    uint8_t *data;
    size_t len;
    bool erase;
    int transaction;
};
struct dbase {
    struct world *w;
    struct row *log;
    int n, cap, transactions;
    struct map rows; // key → struct row
};

static void key_of(const Weft__Rows__Write *r, char out[128])
{
    switch (r->row_case) {
    case WEFT__ROWS__WRITE__ROW_JOB:
        snprintf(out, 128, "job %s", r->job->id);
        return;
    case WEFT__ROWS__WRITE__ROW_HOST:
        snprintf(out, 128, "host %s", r->host->id);
        return;
    case WEFT__ROWS__WRITE__ROW_FENCED:
        snprintf(out, 128, "fenced %s", r->fenced->incarnation);
        return;
    case WEFT__ROWS__WRITE__ROW_CHECKPOINT:
        snprintf(out, 128, "ckpt %s %" PRIu64 " %" PRId64, r->checkpoint->job, r->checkpoint->epoch,
                 r->checkpoint->step);
        return;
    case WEFT__ROWS__WRITE__ROW_EVENT:
        snprintf(out, 128, "event %s %" PRIu64, r->event->job, r->event->seq);
        return;
    case WEFT__ROWS__WRITE__ROW_REQUEST:
        snprintf(out, 128, "request %s", r->request->id);
        return;
    case WEFT__ROWS__WRITE__ROW_AUDIT:
        snprintf(out, 128, "audit %" PRIu64, r->audit->seq);
        return;
    case WEFT__ROWS__WRITE__ROW_META:
        snprintf(out, 128, "meta");
        return;
    default:
        PRE(!"a row without a kind");
    }
}

static Weft__V1__JobState state_of(const struct row *r)
{
    Weft__Rows__Write *w = weft__rows__write__unpack(NULL, r->len, r->data);
    PRE(w && w->job);
    Weft__V1__JobState s = w->job->state;
    weft__rows__write__free_unpacked(w, NULL);
    return s;
}

// What the real one asserts in the same transaction.
static void assert_old(struct dbase *d, const Weft__Rows__Write *r, const char *key)
{
    const struct row *old = map_get(&d->rows, key);
    Weft__V1__JobState was = old ? state_of(old) : WEFT__V1__JOB_STATE__JOB_NONE;
    if (!r->erase && was != r->job->old_state)
        sim_fail(&d->w->sim, "memory and database disagree: %s is %s, expected %s", key,
                 job_state_word((enum job_state)was),
                 job_state_word((enum job_state)r->job->old_state));
}

static void apply(struct dbase *d, struct row *r)
{
    if (r->erase)
        (void)map_remove(&d->rows, r->key);
    else
        (void)map_put(&d->rows, r->key, r);
}

static void write_one(struct dbase *d, const Weft__Rows__Write *w)
{
    struct arena *a = &d->w->sim.arena;
    char key[128];
    key_of(w, key);
    if (w->row_case == WEFT__ROWS__WRITE__ROW_AUDIT)
        return; // never read back
    if (MUTATED(ordered_durable) && w->row_case == WEFT__ROWS__WRITE__ROW_CHECKPOINT &&
        w->checkpoint->state == COMMIT_ORDERED)
        return;
    if (MUTATED(fence_durable) && w->row_case == WEFT__ROWS__WRITE__ROW_JOB)
        w->job->fenced = false;
    if (w->row_case == WEFT__ROWS__WRITE__ROW_JOB)
        assert_old(d, w, key);
    struct row *r = arena_new(a, struct row);
    *r = (struct row){.key = arena_strdup(a, key),
                      .len = weft__rows__write__get_packed_size(w),
                      .erase = w->erase,
                      .transaction = d->transactions};
    r->data = arena_alloc(a, r->len + 1);
    weft__rows__write__pack(w, r->data);
    d->log = arena_grow(a, d->log, sizeof *d->log, d->n, &d->cap);
    d->log[d->n++] = *r;
    apply(d, r);
    check_row(d->w, w);
}

void dbase_commit(struct dbase *d, Weft__Rows__Write *const *v, int n)
{
    d->transactions += n > 0;
    for (int i = 0; i < n; i++)
        write_one(d, v[i]);
}

void dbase_load(struct dbase *d, struct coord *c)
{
    for (size_t i = 0; i < d->rows.cap; i++) {
        const struct row *r = d->rows.slots[i].key ? d->rows.slots[i].value : NULL;
        if (!r)
            continue;
        struct err e = {0};
        Weft__Rows__Write *w = weft__rows__write__unpack(NULL, r->len, r->data);
        PRE(w);
        if (coord_load(c, w, &e))
            sim_fail(&d->w->sim, "a stored row is refused: %s: %s", r->key, e.text);
        weft__rows__write__free_unpacked(w, NULL);
    }
}

static void cut_to(struct dbase *d, int transaction)
{
    map_clear(&d->rows);
    int keep = 0;
    while (keep < d->n && d->log[keep].transaction <= transaction)
        keep++;
    d->n = keep;
    d->transactions = transaction;
    for (int i = 0; i < keep; i++) {
        struct row *r = arena_dup(&d->w->sim.arena, &d->log[i], sizeof *r);
        apply(d, r);
    }
    d->w->db_harmed = true;
}

void dbase_roll_back(struct dbase *d)
{
    cut_to(d, sim_below(&d->w->sim, d->transactions + 1));
}

void dbase_delete(struct dbase *d)
{
    cut_to(d, -1);
    d->n = d->transactions = 0;
}

struct dbase *dbase_new(struct world *w)
{
    struct dbase *d = arena_new(&w->sim.arena, struct dbase);
    d->w = w;
    return d;
}

void dbase_free(struct dbase *d)
{
    map_clear(&d->rows);
}
