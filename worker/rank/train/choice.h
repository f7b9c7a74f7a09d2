// SPDX-License-Identifier: Apache-2.0
// The next token of a sample: the most likely one, or one drawn among the most likely. A pure
// function of its arguments, so every rank that has the same logits chooses the same token.
// Inside worker/rank/train/ only.
#pragma once
#include <stdint.h>

struct choice {
    double temperature; // 0: the most likely token; of equally likely ones the smallest id
    int64_t top_k;      // draw among so many, 0: all; of equally likely ones smaller ids go first
    float u;            // [0, 1): the draw
};

// The id, or −1 where a logit is not finite. `scratch` holds `n` ids.
int32_t choice_token(const struct choice *c, const float *logits, int64_t n, int32_t *scratch);
