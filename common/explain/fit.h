// SPDX-License-Identifier: Apache-2.0
// Whether a plan fits a device, and what would make it fit.
//
// What would help is not guessed: a few usual settings (optimiser state or
// weights cut on the batch axes, remat, more microbatches) are put into the
// job, one at a time and then one on top of the other, and each job so made is
// compiled. What fits is told as a fix, in the order of the table. A job of
// many layers is compiled with a few first: what is far beyond the device by
// that is not tried as a whole. This is no search over meshes: the mesh and the
// model stay as they are.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"
#include "common/explain/findings.h"

bool fit_fits(const struct compiled *c, const struct device_model *d);
// Adds DOES_NOT_FIT to the findings where it does not. Memory of the tries is
// given back.
void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a);
