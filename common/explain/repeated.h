// SPDX-License-Identifier: Apache-2.0
// Work that devices repeat because nothing is cut between them: an axis that deals experts and not the
// batch, a size of the program that no rule cuts, or whatever else it is. Inside common/explain/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/findings.h"

// Adds EXPERTS_ALONE, SIZE_UNRULED and REDUNDANT findings. REDUNDANT leaves out axes that an error
// among the findings `f` names.
void repeated_check(const struct compiled *c, const struct job *job, struct findings *f);
