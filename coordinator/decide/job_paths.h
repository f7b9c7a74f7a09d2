// SPDX-License-Identifier: Apache-2.0
// Whether the paths of a submitted job can lie beneath the workers' roots. Whether the
// files are there only workers see (data_looks.h). Inside coordinator/ only.
#pragma once
#include "common/base/buf.h"
#include "coordinator/decide/coord_state.h"
#include "proto/planner.pb-c.h"

// Appends a line for each path that leaves every root; nothing while no host is known.
void job_paths_check(const struct coord *c, const Weft__Plan__JobFacts *facts, struct buf *no);
// The job that checkpoint.from names, by its name or id; null: it is a path, or there is none.
const struct job_record *job_paths_source(const struct coord *c, const char *from, struct arena *a,
                                          int64_t *step);
