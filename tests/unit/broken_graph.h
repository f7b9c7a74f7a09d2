// SPDX-License-Identifier: Apache-2.0
// Graphs that the verifier must refuse: each case breaks a copy of one sound graph.
#pragma once

#include <string.h>

#include "common/compile/program/verify.h"
#include "tests/unit/compile_case.h"

struct breakage {
    const char *name;
    const char *said; // a part of what the verifier says
    void (*make)(struct graph *g);
};
#define BREAKAGE(fn, said) \
    {                      \
#fn, said, fn      \
    }

static inline void expect_refused(struct fixture *f, const struct mesh *mesh,
                                  const struct breakage *all, size_t n)
{
    const struct graph *sound = f->c.program[PROGRAM_TRAIN]->graph;
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        struct graph g = *sound;
        g.nodes = arena_dup(&f->a, g.nodes, sizeof *g.nodes * (size_t)g.nnodes);
        g.values = arena_dup(&f->a, g.values, sizeof *g.values * (size_t)g.nvalues);
        assert_int_equal(verify_partitioned(&g, mesh, &e), 0);
        all[i].make(&g);
        if (verify_partitioned(&g, mesh, &e) != ERR_INTERNAL || !strstr(e.text, all[i].said))
            fail_msg("%s: it is said: %s", all[i].name, e.code ? e.text : "nothing");
    }
}
