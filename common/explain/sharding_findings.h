// SPDX-License-Identifier: Apache-2.0
// What the compiler found wrong with the sharding section (compile/shard/facts.h), as findings: a
// sentence and a setting for each. Inside explain/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/findings.h"

// Adds the findings of the facts from `first` up to, not including, `end`. Those of tensors need
// the graph.
void sharding_findings(const struct compiled *c, const struct job *job, int first, int end,
                       struct findings *out);
