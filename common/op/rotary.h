// SPDX-License-Identifier: Apache-2.0
// How fast ROTARY turns the pairs of a head: one formula, so that no backend has one of its own.
//
// Pair p of a series turns by f = 2^(−octaves · p) = theta^(−2p / elements of the series) a
// position. A context longer than the model was trained for slows pairs down:
//
//   LINEAR    all of them: f / factor
//   LLAMA3    those that turn at most `slow` times over `length` positions; those that turn `fast`
//             times or more keep f; what lies between them is mixed by how often it turns
//   YARN      the same, mixed by the number of the pair, from a whole pair to a whole pair
//
// All are f · (share + (1 − share) / factor) for a share that is linear in p or in f, held between
// 0 and 1.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

#include "common/op/op.h"

// A row is all elements at one position: `pitch` of them. The first `heads` heads of it are turned
// (ROTARY_PACKED leaves the last packed operand as it is). `heads` is 0 where the positions do not
// count the rows of x.
struct rotary_row {
    int64_t heads, pitch;
};
struct rotary_row rotary_row_of(const struct op_call *c);

struct rotary_series {
    double theta, elements, octaves, factor;
    double share, by_pair, by_speed; // share + by_pair · p + by_speed · f
};
// `width`: elements of a head.
struct rotary_series rotary_series_of(const struct op_rotary *r, int64_t width);
double rotary_speed(const struct rotary_series *s, int64_t pair);

#ifdef __cplusplus
}
#endif
