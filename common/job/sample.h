// SPDX-License-Identifier: Apache-2.0
// What a decoder continues after evaluations: `eval.sample`. Inside common/job/ only.
#pragma once
#include <stdint.h>

struct job_sample {
    const char *prompt;    // null: no samples. prompt.h reads it
    int64_t every;         // evaluations
    int64_t tokens, count; // to add to it; continuations
    double temperature;    // 0: the most likely token
    int64_t top_k;         // 0: any token
    int64_t seed;
};
