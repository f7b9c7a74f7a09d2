// SPDX-License-Identifier: Apache-2.0
// Whether a plan fits a device, and which settings would make it fit.
//
// What would help is not guessed: a table of candidate settings, cheapest first, is put into the job
// row by row and compiled. The first that fits is the fix.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"
#include "common/explain/findings.h"

// Nodes and instructions, about fifteen seconds of a processor. A bound of time would give the same
// job other advice elsewhere.
enum { FIT_WORK = 3000000 };

// What NCCL takes of a device with this plan, and all that the device has to hold.
uint64_t fit_nccl(const struct memory *m, const struct device_model *d);
uint64_t fit_need(const struct memory *m, const struct device_model *d);
// Of the stage whose device has to hold the most: not always that of the largest arena, as NCCL takes more
// of a stage in the middle.
const struct memory *fit_fullest(const struct compiled *c, const struct device_model *d);
bool fit_fits(const struct compiled *c, const struct device_model *d);
// Adds DOES_NOT_FIT to the findings where it does not. The search ends once `work` nodes and
// instructions were compiled, and the finding says so. Memory of the tries is given back.
void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a, int64_t work);
