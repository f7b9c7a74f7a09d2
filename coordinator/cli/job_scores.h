// SPDX-License-Identifier: Apache-2.0
// Last and best of several jobs, as of a sweep: what their rows of metrics say. Inside coordinator/cli/ only.
#pragma once
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/job_rows.h"

// Returns an exit code. A job without rows, or whose rows nobody can read now, has a line all the same.
int job_scores_print(struct cli_link *l, const Weft__V1__JobsReply *jobs, bool json);
