// SPDX-License-Identifier: Apache-2.0
// What the programs make of the mesh: axes that nothing is cut on, stages that wait for others.
// Inside common/explain/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/findings.h"

// Adds UNUSED_AXIS, STAGE_IMBALANCE and FEW_MICROBATCHES findings.
void usage_check(const struct compiled *c, const struct job *job, struct arena *a,
                 struct findings *f);
