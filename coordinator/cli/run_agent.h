// SPDX-License-Identifier: Apache-2.0
// A `weft run` of index 1 and above in an allocation: a worker that joins the leader's coordinator.
//
//   job file ─► leader's file ─► certificate for its token ─► worker ─► the leader's exit code
//               (waits for it)                                  └─► leader lost, asked to stop: 75
//
// A file of another start of the allocation, or whose leader does not answer, is an old one: it waits
// for a new one. Inside coordinator/cli/ only.
#pragma once
#include "coordinator/cli/several.h"
#include "coordinator/cli/verbs.h"

// Of `s` the allocation, and the secret if there is one already. Returns an exit code; what went wrong has
// been printed.
int run_agent(const struct verb *v, const struct args *args, const struct several *s);
