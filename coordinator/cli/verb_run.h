// SPDX-License-Identifier: Apache-2.0
// `weft run` as one of several processes, whatever started them. Inside coordinator/cli/ only.
#pragma once
#include "coordinator/cli/several.h"
#include "coordinator/cli/verbs.h"

// Of `s` the allocation, and the secret if there is one already. Returns an exit code; what went wrong has
// been printed.
int run_of_several(const struct verb *v, const struct args *a, const struct several *s);
