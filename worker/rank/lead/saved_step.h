// SPDX-License-Identifier: Apache-2.0
// DIR/saved: the step of the newest checkpoint of a solo run. By it a start knows that checkpoints were
// there which somebody has deleted since. It is written at each commit and never synced, so that the
// leader's thread waits for no disk; a power loss may take it, and then a start knows less.
#pragma once
#include <stdint.h>

// 0: DIR knows of none. Where `saved` does not tell (an older weft wrote none) it is the step with
// which the newest attempt began, as DIR/state says.
int64_t saved_step_read(const char *dir);
// The step of the last row in DIR/metrics.jsonl, 0 where there is none. It stands for what `saved` does
// not know: the run had come so far, saved or not.
int64_t saved_step_trained(const char *dir);
// Logs a failure, which costs no more than a warning at a later start.
void saved_step_write(const char *dir, int64_t step);
