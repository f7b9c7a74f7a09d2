// SPDX-License-Identifier: Apache-2.0
// A collective from its start to its end.
#pragma once
#include "worker/collective/collective.h"

static inline int collective_run(struct communicator *c, const struct collective_args *a,
                                 struct err *e)
{
    struct collective_ticket t = {0};
    int rc = collective_start(c, a, &t, e);
    return rc ? rc : collective_wait(c, &t, e);
}
