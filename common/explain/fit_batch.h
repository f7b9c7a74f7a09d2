// SPDX-License-Identifier: Apache-2.0
// The largest batch that fits. Inside explain/ only.
#pragma once
#include "common/explain/fit_try.h"

// Of the job with these settings, up to its own batch: the largest that fits, while the next one that
// divides does not. 0: not even the smallest that divides fits.
int64_t fit_batch_largest(struct fitting *f, const struct settings *s);
// "data.batch=N", behind these settings.
void fit_batch_put(const struct fitting *f, struct settings *s, int64_t batch);
