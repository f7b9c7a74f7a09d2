// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules by optax's formulas. The first update uses lr_at(schedule, 0).
#pragma once
#include "common/job/job.h"
#include "common/op/op.h"

double lr_at(const struct job_schedule *s, int64_t step);
// The device scalars of the step's update: learning rate, and Adam's bias corrections for state that
// has had `updates` before.
void hyper_at(const struct job *job, int64_t step, int64_t updates, float out[HYPER_SLOTS]);
