// SPDX-License-Identifier: Apache-2.0
// Norms by group of parameters. See detail.h.
#include "worker/rank/train/detail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/compile/graph/norm_groups.h"

enum { PIECE = 1 << 18 }; // numbers that are compared at a time

// Sums of one step lie with the host, travel with the next step, and are taken when its metrics are
// looked at. The step after that must send zeros.
enum stage { IDLE, SUMMED, SENT };

struct share { // of one parameter
    int part, group;
    uint64_t at;  // byte of the part's memory
    int64_t from; // place in `before`
    int64_t count;
};
struct detail {
    struct state *state;
    int nshares, ngroups;
    struct share *shares;
    float *before, *piece;
    double *sums; // of each group: Σ weight², Σ update²
    struct row_group *rows;
    enum stage stage;
    int64_t step; // whose norms `rows` has
    bool ready;   // they are in no row yet
};

static int find_group(const char *const *names, int n, const char *param)
{
    size_t len = norm_group_len(param);
    for (int i = 0; i < n; i++)
        if (strncmp(names[i], param, len) == 0 && !names[i][len])
            return i;
    return -1;
}

static int64_t list_shares(struct detail *d, const struct deal_rank *own, const char *const *names,
                           struct arena *a)
{
    const struct state *s = d->state;
    int64_t total = 0;
    d->shares = arena_array(a, struct share, own->n);
    for (int i = 0; i < own->n; i++) {
        const struct deal_slice *slice = &own->slices[i];
        if (s->values[slice->part]->kind != VALUE_PARAM)
            continue;
        PRE(s->parts[slice->part].dtype == DT_F32);
        int64_t count = (int64_t)(slice->bytes / sizeof(float));
        int group = find_group(names, d->ngroups, s->parts[slice->part].name);
        PRE(group >= 0);
        d->shares[d->nshares++] = (struct share){slice->part, group, slice->at, total, count};
        total += count;
    }
    return total;
}

int detail_open(const struct compiled *c, struct state *state, int rank, struct arena *a,
                struct detail **out, struct err *e)
{
    struct detail *d = arena_alloc(a, sizeof *d);
    struct deal deal;
    const char **names;
    int rc = deal_make(a, state->parts, state->nparts, mesh_ranks(&c->mesh), &deal, e);
    if (rc)
        return rc;
    *d = (struct detail){.state = state};
    d->ngroups = norm_groups(c->global[PROGRAM_TRAIN], a, &names);
    d->sums = arena_array(a, double, 2 * d->ngroups);
    d->rows = arena_array(a, struct row_group, d->ngroups);
    for (int i = 0; i < d->ngroups; i++)
        d->rows[i].name = names[i];
    int64_t total = list_shares(d, &deal.rank[rank], names, a);
    d->before = malloc(((size_t)total + PIECE) * sizeof *d->before);
    *out = d;
    if (!d->before)
        return err_set(e, ERR_NOMEM, "no memory for metrics.detail: it takes %lld bytes here",
                       (long long)(total + PIECE) * (long long)sizeof *d->before);
    d->piece = d->before + total;
    return 0;
}

void detail_close(struct detail *d)
{
    if (d)
        free(d->before);
}

static const char *find_bytes(const struct detail *d, const struct share *s)
{
    return (const char *)d->state->local[s->part] + s->at;
}

int detail_begin(struct detail *d, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < d->nshares && !rc; i++) {
        const struct share *s = &d->shares[i];
        rc = exec_get(d->state->exec, d->before + s->from, find_bytes(d, s),
                      (size_t)s->count * sizeof(float), e);
    }
    return rc;
}

static int compare_share(struct detail *d, const struct share *s, struct err *e)
{
    double weight = 0, update = 0;
    for (int64_t at = 0; at < s->count; at += PIECE) {
        int64_t n = s->count - at < PIECE ? s->count - at : PIECE;
        const char *from = find_bytes(d, s) + (size_t)at * sizeof(float);
        const float *before = d->before + s->from + at, *after = d->piece;
        int rc = exec_get(d->state->exec, d->piece, from, (size_t)n * sizeof(float), e);
        if (rc)
            return rc;
        for (int64_t i = 0; i < n; i++) {
            double w = (double)after[i], u = w - (double)before[i];
            weight += w * w;
            update += u * u;
        }
    }
    d->sums[2 * s->group] += weight;
    d->sums[2 * s->group + 1] += update;
    return 0;
}

int detail_end(struct detail *d, struct err *e)
{
    int rc = 0;
    memset(d->sums, 0, 2 * (size_t)d->ngroups * sizeof *d->sums);
    for (int i = 0; i < d->nshares && !rc; i++)
        rc = compare_share(d, &d->shares[i], e);
    d->stage = SUMMED;
    return rc;
}

bool detail_put(struct detail *d, float *slots)
{
    for (int i = 0; i < 2 * d->ngroups; i++)
        slots[i] = d->stage == SUMMED ? (float)d->sums[i] : 0;
    bool changed = d->stage == SUMMED || d->stage == SENT;
    d->stage = d->stage == SUMMED ? SENT : IDLE;
    return changed;
}

void detail_take(struct detail *d, const float *slots, int64_t step)
{
    for (int i = 0; i < d->ngroups; i++) {
        d->rows[i].weight_norm = sqrt((double)slots[2 * i]);
        d->rows[i].update_norm = sqrt((double)slots[2 * i + 1]);
    }
    d->step = step;
    d->ready = true;
}

struct row_detail detail_row(const struct detail *d)
{
    return (struct row_detail){d->step, d->ready ? d->ngroups : 0, d->rows};
}

void detail_written(struct detail *d)
{
    d->ready = false;
}
