// SPDX-License-Identifier: Apache-2.0
// For tests of the ops: a rig for each instruction set and number of threads, and a case run on all
// of them against the reference.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

// Every group of these tests says all that is wrong.
#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, begin, end) \
    rig_run_group(#tests, tests, sizeof(tests) / sizeof *(tests), begin, end)

enum { MAX_THREADS = 3, MAX_RIGS = 15 };

// One for each instruction set of this machine and each number of threads; on CUDA the one device.
static struct rig rigs[MAX_RIGS];
static int nrigs;

static inline int setup(void **state)
{
    static const char *const isas[] = {"amx", "avx512bf16", "avx512", "avx2", "baseline"};
    (void)state;
    rig_find_backend();
    if (rig_is_cuda())
        rig_open(&rigs[nrigs++], 1, NULL);
    for (size_t i = 0; !rig_is_cuda() && i < sizeof isas / sizeof *isas; i++) {
        struct rig probe;
        rig_open(&probe, 1, isas[i]);
        bool here = strcmp(probe.info.isa, isas[i]) == 0;
        rig_close(&probe);
        for (int threads = 1; here && threads <= MAX_THREADS; threads++)
            rig_open(&rigs[nrigs++], threads, isas[i]);
    }
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    while (nrigs)
        rig_close(&rigs[--nrigs]);
    return 0;
}

// ---- extents -----------------------------------------------------------------------------------

struct extents {
    int64_t i, j, k, l;
};

static inline void letters(int64_t ext[26], struct extents s)
{
    memset(ext, 0, 26 * sizeof *ext);
    ext['a' - 'a'] = CLIP_SLOTS;
    ext['b' - 'a'] = HYPER_SLOTS;
    ext['c' - 'a'] = 3;
    ext['i' - 'a'] = s.i;
    ext['j' - 'a'] = s.j;
    ext['k' - 'a'] = s.k;
    ext['l' - 'a'] = s.l;
}

// ---- one case on every rig ---------------------------------------------------------------------

// Threads never change a bit, unless the case is a product (oneDNN's sums follow the slices).
static inline void same_bits(const char *what, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %lld differs between thread counts: %.9g and %.9g", what,
                     (long long)i, a[i], b[i]);
}

// What a GPU's functions add to a case's tolerance: CUDA promises expf, logf and their like to two
// units of the last place. Cases without any tolerance are exact there too.
static inline double device_slack(double rtol)
{
    return rig_is_cuda() && rtol > 0 ? 0x1p-22 : 0;
}

static inline void run_everywhere(const struct rig_case *c, const char *name, double rtol,
                                  double atol)
{
    struct arena a = {0};
    double *want[OP_MAX_OUT], *got[OP_MAX_OUT], *first[OP_MAX_OUT] = {0};
    rig_reference(c, &a, want);
    rtol += device_slack(rtol);
    for (int r = 0; r < nrigs; r++) {
        char what[600], operands[400];
        if (!rigs[r].backend->op.run[c->op])
            fail_msg("%s has no %s", rigs[r].backend->name, op_name(c->op));
        rig_describe(c, operands, sizeof operands);
        snprintf(what, sizeof what, "%s %s, %s, on %s with %d threads", op_name(c->op), name,
                 operands, rigs[r].info.isa, rigs[r].info.threads);
        bool ran = rig_run(&rigs[r], c, &a, got);
        for (int k = 0; ran && k < c->nout; k++) {
            int64_t n = shape_count(&c->start[k].shape);
            rig_compare(what, got[k], want[k], n, rtol, atol);
            if (rigs[r].info.threads == 1)
                first[k] = got[k];
            else if (first[k] && !op_is(c->op, OP_IS_PRODUCT))
                same_bits(what, got[k], first[k], n);
        }
    }
    arena_clear(&a);
}
