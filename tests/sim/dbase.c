// SPDX-License-Identifier: Apache-2.0
// The coordinator's database: a log of committed transactions and the rows that they add up to.
// What is not committed is nowhere. An old copy is the log up to an older transaction.
#include "tests/sim/sim_world.h"

#include <string.h>

#include "common/base/err.h"
#include "common/base/map.h"
#include "common/ckpt/commit.h"
#include "coordinator/decide/words.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim_check.h"

struct entry { // of the log
    const char *key;
    struct stored_row *row;
    int transaction;
};
struct dbase {
    struct world *w;
    struct entry *log;
    int n, cap, transactions;
    struct map rows; // key → struct stored_row
};

// What the real one asserts in the same transaction.
static void assert_old(struct dbase *d, const struct row *r, const char *key)
{
    const struct stored_row *old = map_get(&d->rows, key);
    enum job_state was = old ? old->job->state : JOB_NONE;
    if (!r->erase && was != r->replaces)
        sim_fail(&d->w->sim, "memory and database disagree: %s is %s, expected %s", key,
                 job_state_word(was), job_state_word(r->replaces));
}

static void erase_rows_of(struct dbase *d, const char *job)
{
    for (size_t i = 0; i < d->rows.cap;) {
        const struct stored_row *s = d->rows.slots[i].key ? d->rows.slots[i].value : NULL;
        if (s && row_is_of_job(&s->row, job)) {
            (void)map_remove(&d->rows, d->rows.slots[i].key);
            i = 0; // others may have moved
        } else {
            i++;
        }
    }
}

static void apply(struct dbase *d, const struct entry *x)
{
    if (!x->row->row.erase) {
        (void)map_put(&d->rows, x->key, x->row);
        return;
    }
    (void)map_remove(&d->rows, x->key);
    if (x->row->row.kind == ROW_JOB)
        erase_rows_of(d, x->row->job->id);
}

static void write_one(struct dbase *d, const struct row *r)
{
    struct arena *a = &d->w->sim.arena;
    char key[200];
    row_print_key(r, key);
    if (r->kind == ROW_AUDIT)
        return; // never read back
    if (MUTATED(ordered_durable) && r->kind == ROW_CHECKPOINT &&
        row_value(r, "state")->number == COMMIT_ORDERED)
        return;
    if (MUTATED(fence_durable) && r->kind == ROW_JOB)
        row_value(r, "fenced")->number = false;
    if (r->kind == ROW_JOB)
        assert_old(d, r, key);
    struct entry x = {arena_strdup(a, key), stored_row_new(r), d->transactions};
    d->log = arena_grow(a, d->log, sizeof *d->log, d->n, &d->cap);
    d->log[d->n++] = x;
    apply(d, &x);
    check_row(d->w, x.row);
}

void dbase_commit(struct dbase *d, const struct row *v, int n)
{
    d->transactions += n > 0;
    for (int i = 0; i < n; i++)
        write_one(d, &v[i]);
}

void dbase_load(struct dbase *d, struct coord *c)
{
    for (int kind = 0; kind < ROW_KINDS; kind++)
        for (size_t i = 0; i < d->rows.cap; i++) {
            const struct stored_row *s = d->rows.slots[i].key ? d->rows.slots[i].value : NULL;
            struct err e = {0};
            if (s && (int)s->row.kind == kind && coord_load(c, &s->row, &e))
                sim_fail(&d->w->sim, "a stored row is refused: %s: %s", d->rows.slots[i].key,
                         e.text);
        }
}

static void cut_to(struct dbase *d, int transaction)
{
    map_clear(&d->rows);
    int keep = 0;
    while (keep < d->n && d->log[keep].transaction <= transaction)
        keep++;
    while (d->n > keep)
        stored_row_free(d->log[--d->n].row);
    d->transactions = transaction;
    for (int i = 0; i < keep; i++)
        apply(d, &d->log[i]);
    d->w->db_harmed = true;
}

void dbase_roll_back(struct dbase *d)
{
    cut_to(d, sim_below(&d->w->sim, d->transactions + 1));
    d->w->coordinator.restored = true;
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
    while (d->n)
        stored_row_free(d->log[--d->n].row);
}
