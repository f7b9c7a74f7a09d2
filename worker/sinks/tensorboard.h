// SPDX-License-Identifier: Apache-2.0
// The sink that comes with weft: header and rows in, STORE/tensorboard/events.out.tfevents.weft out.
// Inside worker/sinks/ only.
#pragma once
#include "common/base/err.h"

// Reads lines from `in` to its end, and writes to `out` how many rows are durable. Lines that are no
// rows are left out. A failure of the file ends it: whoever started it gives the rows again.
int tensorboard_run(int in, int out, struct err *e);
