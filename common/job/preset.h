// SPDX-License-Identifier: Apache-2.0
// Named sizes of decoders, for job/check.c and the schema's row of `model.preset`.
#pragma once
#include "common/job/job.h"

extern const char *const preset_names[]; // null-terminated; job_model.preset counts them
#define PRESETS_LLAMA "llama|llama-8b|llama-70b|llama-405b"

struct reading;
// Fills the sizes of a decoder that are not given, from its preset and those that are.
void preset_resolve(struct reading *r);
