// SPDX-License-Identifier: Apache-2.0
// What people read where a job continues from an older checkpoint than the newest that it had, or
// from none. Whoever leads says the same; README.md has the rule.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lost_steps {
    const char *from; // the checkpoint that the job continues from; null: none
    int64_t from_step, had_step;
    bool damaged; // the one of had_step is there, and cannot be used
};

// "continues from step-00000020.a1: the checkpoint of step 30 is gone, so steps 21 to 30 are trained
// again". Only where steps are lost: had_step is greater than from_step, or than 0.
enum { LOST_STEPS_MAX = 240 };
void lost_steps_print(const struct lost_steps *l, char out[LOST_STEPS_MAX]);
