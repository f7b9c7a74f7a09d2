// SPDX-License-Identifier: Apache-2.0
// Reads a job's text into what the coordinator needs of it, in a process that plans
// (planner_process.h). Nothing else in coordinator/ outside cli/ reads job texts. Inside coordinator/
// only.
#pragma once
#include "common/base/arena.h"
#include "proto/planner.pb-c.h"

enum { JOB_DATA_PATHS = 7 }; // at most
// In the arena, all of it. If the text cannot be read, or is to be planned and would not run, only
// `refused` is set.
Weft__Plan__JobFacts *job_facts_read(const Weft__Plan__JobText *t, struct arena *a);
