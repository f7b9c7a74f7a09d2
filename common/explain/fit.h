// SPDX-License-Identifier: Apache-2.0
// Whether a plan fits a device, and what would make it fit.
//
// What would help is not guessed: settings are put into the job, and each job so made is compiled.
// First those that keep mesh, dtype and batch (optimiser state or weights cut on the batch axes,
// remat, more microbatches), one at a time and then one on top of the other; what fits is told as a
// fix, in the order of the table. Where none does: other meshes of the same devices (fit_mesh.h),
// then bf16, then the largest smaller batch (fit_batch.h), and only then more devices. A job of
// many layers is first compiled with a few of them. Settings that are far beyond the device by that
// estimate are not tried with all.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"
#include "common/explain/findings.h"

bool fit_fits(const struct compiled *c, const struct device_model *d);
// Adds DOES_NOT_FIT to the findings where it does not. Memory of the tries is
// given back.
void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a);
// The same, but looking ends once so many nodes and instructions were compiled, and the finding
// says so.
void fit_check_within(const struct job *job, build_fn build, const struct device_model *d,
                      const struct compiled *c, struct findings *found, struct arena *a,
                      int64_t work);
