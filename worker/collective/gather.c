// SPDX-License-Identifier: Apache-2.0
// Texts of all ranks to all: by this they agree on what each of them can do.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/heap.h"
#include "worker/collective/world.h"

static int open_everyone(struct world *w, struct err *e)
{
    int *ranks = heap_alloc(sizeof *ranks * (size_t)w->ranks);
    for (int r = 0; r < w->ranks; r++)
        ranks[r] = r;
    int rc = communicator_new(w, "everyone", ranks, w->ranks, &w->everyone, e);
    free(ranks);
    return rc;
}

int world_gather(struct world *w, const char *name, const char *own, char (*all)[GATHER_TEXT],
                 struct err *e)
{
    struct collective_ticket t;
    const struct collective_args a = {.op = COLLECTIVE_ALL_GATHER,
                                      .dtype = DT_U8,
                                      .buf = all,
                                      .count = (int64_t)w->ranks * GATHER_TEXT,
                                      .name = name};
    snprintf(all[w->rank], GATHER_TEXT, "%s", own);
    int rc = w->everyone ? 0 : open_everyone(w, e);
    rc = rc ? rc : collective_start(w->everyone, &a, &t, e);
    rc = rc ? rc : collective_wait(w->everyone, &t, e);
    for (int r = 0; r < w->ranks; r++)
        all[r][GATHER_TEXT - 1] = 0;
    return rc;
}
