// SPDX-License-Identifier: Apache-2.0
// Key heads that query heads share, on a mesh that cuts the query heads: where the cut divides the
// key heads too they follow it; where it is a multiple of them every device makes them all, which
// is a note with the work repeated; any other ratio is an error with the numbers that fit.
// Inside common/explain/ only.
#pragma once
#include "common/compile/shard/sharding.h"
#include "common/explain/findings.h"

// Holds the attentions of the unpartitioned graph against the specs of s.
void heads_check(const struct sharding *s, const struct job *job, const struct mesh *m,
                 const struct graph *g, struct findings *f);
