// SPDX-License-Identifier: Apache-2.0
// The largest batch that fits. Inside explain/ only.
#pragma once
#include "common/explain/fit_try.h"

// Returns the largest batch with which the job and these settings fit, up to the job's own; the
// next larger one that divides does not fit. 0: no batch that divides fits.
int64_t fit_batch_largest(struct fitting *f, const struct settings *s);
// "data.batch=N", behind these settings.
void fit_batch_put(const struct fitting *f, struct settings *s, int64_t batch);
