// SPDX-License-Identifier: Apache-2.0
// What the programs make of the mesh: axes that nothing is cut on, and work that devices repeat.
#pragma once
#include "common/compile/compile.h"

// Adds UNUSED_AXIS and REDUNDANT findings.
void usage_check(const struct compiled *c, const struct job *job, struct arena *a,
                 struct findings *f);
