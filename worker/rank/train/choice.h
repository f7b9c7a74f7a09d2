// SPDX-License-Identifier: Apache-2.0
// The next token of a text: the most likely one, or one drawn among the most likely. A pure function
// of its arguments, so every rank that has the same logits chooses the same token.
// Inside worker/rank/train/ only.
//
// What is left to draw from, in the order of transformers' generate():
//
//   penalty      the logit l of each id of the text becomes l/p where it is positive, else l·p
//   temperature  an id's weight is e^(l/T), in double; 0: the most likely id, and nothing is drawn
//   top_k        the k most likely, of equally likely ones those of smaller ids
//   top_p        of these the fewest that together have the share p
//   min_p        of these those that have this share of the weight of the most likely
#pragma once
#include <stdint.h>

struct choice {
    double temperature;
    int64_t top_k;       // 0: all
    double top_p;        // 1: all; so is what is not in (0, 1)
    double min_p;        // 0: all
    double penalty;      // 1, or 0: none
    const int32_t *text; // whose ids the penalty is of
    int64_t ntext;
    float u; // [0, 1): the draw
};

// The id, or −1 where a logit is not finite. The penalty changes the logits. `scratch` holds `n` ids.
int32_t choice_token(const struct choice *c, float *logits, int64_t n, int32_t *scratch);
// ln of the share that an id has of the softmax of the logits.
double choice_log_share(const float *logits, int64_t n, int32_t id);
