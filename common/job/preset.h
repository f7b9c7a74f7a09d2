// SPDX-License-Identifier: Apache-2.0
// The named sizes of decoders, as the schema's row of `model.preset` lists them. What a preset
// fills in is preset.c's.
#pragma once
#include "common/job/job.h"

extern const char *const preset_names[]; // null-terminated; job_model.preset counts them
#define PRESETS_LLAMA "llama|llama-8b|llama-70b|llama-405b"
