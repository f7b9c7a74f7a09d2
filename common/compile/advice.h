// SPDX-License-Identifier: Apache-2.0
// What else a job's author may want to hear: patterns of optimiser groups that match nothing, and
// key heads that a cut of the query heads leaves whole.
#pragma once
#include "common/compile/compile.h"

void advice_check(const struct compiled *c, const struct job *job, struct arena *a,
                  struct findings *f);
