// SPDX-License-Identifier: Apache-2.0
// Values of two interpreters held against each other: one of a whole model, one of its parts.
#pragma once
#include <math.h>
#include <stdlib.h>

#include "tests/support/interp.h"
#include "tests/unit/unit.h"

// slack 0: to the bit.
static inline void compare_value(const struct interp *whole, const struct interp *parts,
                                 const struct value *v, double slack, const char *what)
{
    double *a = interp_get(whole, v->name), *b = interp_get(parts, v->name);
    for (int64_t i = 0; i < shape_count(&v->shape); i++)
        if (!(fabs(a[i] - b[i]) <= slack * (1 + fabs(a[i]))))
            fail_msg("%s: %s[%lld]: %.15g, not %.15g", what, v->name, (long long)i, b[i], a[i]);
    free(a);
    free(b);
}

// Every parameter of `whole`.
static inline void compare_to(const struct interp *whole, const struct interp *parts, double slack,
                              const char *what)
{
    for (int v = 0; v < whole->g->nvalues; v++)
        if (whole->g->values[v].kind == VALUE_PARAM && whole->g->values[v].alias < 0)
            compare_value(whole, parts, &whole->g->values[v], slack, what);
}

static inline void compare_params(const struct interp *whole, const struct interp *parts,
                                  const char *what)
{
    compare_to(whole, parts, 1e-9, what);
}
