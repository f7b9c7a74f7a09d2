// SPDX-License-Identifier: Apache-2.0
// For tests of decoding with cached keys: programs of any mesh, interpreted or run on ranks, held against
// what the texts' logits are to be.
#pragma once
#include "tests/support/how_many.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/decode_texts.h"

// ---- who decodes -------------------------------------------------------------------------------

// Caches begin with what a text before may have left there.
static void put_junk(struct interp *x)
{
    for (int v = 0; v < x->g->nvalues; v++) {
        if (x->g->values[v].kind != VALUE_CACHE)
            continue;
        int64_t n = shape_count(&x->g->values[v].shape);
        double *junk = malloc(sizeof *junk * (size_t)n);
        for (int64_t i = 0; i < n; i++)
            junk[i] = interp_junk(x->g, v, i);
        interp_set(x, x->g->values[v].name, junk);
        free(junk);
    }
}

static void copy_caches(const struct interp *from, struct interp *to)
{
    for (int v = 0; v < from->g->nvalues; v++) {
        if (from->g->values[v].kind != VALUE_CACHE)
            continue;
        double *rows = interp_get(from, from->g->values[v].name);
        interp_set(to, from->g->values[v].name, rows);
        free(rows);
    }
}

static void interpret_calls(const struct compiled *c, struct decode_call *calls,
                            void (*set)(struct interp *x))
{
    struct interp of[2]; // FILL and STEP; they share the caches
    for (int k = 0; k < 2; k++) {
        interp_init(&of[k], c->program[PROGRAM_FILL + k]->graph, &c->mesh, 1);
        fill_in(&of[k], set);
        put_junk(&of[k]);
    }
    for (int i = 0; i < CALLS; i++) {
        struct decode_call *call = &calls[i];
        const int k = call->kind - PROGRAM_FILL;
        struct interp *x = &of[k];
        interp_feed(x, k ? "step/tokens" : "fill/tokens", call->tokens, 0);
        interp_feed(x, k ? "step/positions" : "fill/positions", call->positions, 0);
        interp_feed(x, k ? "step/last" : "fill/last", call->last, 0);
        interp_phase(x, PHASE_FORWARD, 0);
        interp_phase(x, PHASE_UPDATE, 0);
        copy_caches(x, &of[1 - k]);
        free(call->got);
        call->got = interp_get(x, "metrics");
    }
    for (int k = 0; k < 2; k++)
        interp_clear(&of[k]);
}

// `transport`: null: the hosts'.
static int try_calls(const struct compiled *c, struct decode_call *calls,
                     void (*set)(struct interp *x), const struct transport *transport,
                     struct err *e)
{
    struct whole_tensor data[CALLS][4];
    struct rank_call run[CALLS];
    struct interp start;
    for (int i = 0; i < CALLS; i++) {
        const bool step = calls[i].kind == PROGRAM_STEP;
        memcpy(data[i],
               (struct whole_tensor[]){
                   {step ? "step/tokens" : "fill/tokens", calls[i].tokens},
                   {step ? "step/positions" : "fill/positions", calls[i].positions},
                   {step ? "step/last" : "fill/last", calls[i].last},
                   {NULL, NULL}},
               sizeof data[i]);
        run[i] = (struct rank_call){calls[i].kind, data[i], calls[i].got};
    }
    interp_init(&start, c->global[PROGRAM_FILL], NULL, 1);
    set(&start);
    struct rank_threads ranks = {
        .compiled = c, .start = &start, .calls = run, .ncalls = CALLS, .transport = transport};
    int rc = rank_threads_run(&ranks, e);
    rank_threads_clear(&ranks);
    interp_clear(&start);
    return rc;
}

static inline void run_calls(const struct compiled *c, struct decode_call *calls,
                             void (*set)(struct interp *x), const struct transport *transport,
                             const char *what)
{
    struct err e = {0};
    if (try_calls(c, calls, set, transport, &e))
        fail_msg("%s: %s", what, e.text);
}

// ---- what they give ----------------------------------------------------------------------------

// Null: all is well; else what is not.
static const char *find_difference(const struct texts *t, const struct decode_call *calls,
                                   double tolerance)
{
    static char said[200];
    for (int i = 0; i < CALLS; i++) {
        const struct decode_call *c = &calls[i];
        double most = 1;
        for (int v = 0; v < t->rows * t->padded; v++)
            most = c->counts[v / t->padded] ? fmax(most, fabs(c->want[v])) : most;
        for (int k = 0; k < t->rows; k++)
            for (int v = 0; v < t->vocab && c->counts[k]; v++) {
                double want = c->want[k * t->padded + v], got = c->got[k * t->padded + v];
                if (fabs(want - got) <= tolerance * most)
                    continue;
                snprintf(said, sizeof said,
                         "call %d: text %d of %d tokens, the last %d new, id %d: %.9g, not %.9g", i,
                         k, c->n[k], c->counts[k], v, got, want);
                return said;
            }
    }
    return NULL;
}

// Holds a job's programs against what its model gives on one device.
static inline void check_decoding(const char *alone, const struct compiled *c, bool runs,
                                  uint64_t seed, void (*set)(struct interp *x), const char *what)
{
    struct fixture whole;
    struct texts t;
    struct decode_call calls[CALLS];
    must_compile(&whole, alone, PROGRAM_SAMPLE, 0, 0);
    texts_open(&t, &whole.c, seed, set);
    draw_calls(&t, calls, c->rows, c->context);
    if (runs)
        run_calls(c, calls, set, NULL, what);
    else
        interpret_calls(c, calls, set);
    const bool halves = c->global[PROGRAM_FILL]->compute == DT_BF16;
    const char *bad = find_difference(&t, calls,
                                      halves ? (runs ? 0.03 : 1e-9)
                                      : runs ? 1e-5
                                             : 1e-10);
    if (bad)
        fail_msg("%s by %lld of %lld %s: %s", what, (long long)c->rows, (long long)c->context,
                 runs ? "on a device" : "interpreted", bad);
    free_calls(calls);
    interp_clear(&t.whole);
    fixture_clear(&whole);
}
