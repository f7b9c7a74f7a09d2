// SPDX-License-Identifier: Apache-2.0
// The tape: what reverse mode knows while it walks a graph backwards, and what a vjp rule adds to it.
//
// A value's cotangent is the sum of what its readers contribute. A rule (vjp.c) calls tape_add for
// each input that wants a cotangent; when all readers have contributed the terms are added up
// where the earliest of them stands. Inside graph/ only.
#pragma once
#include "common/compile/graph/graph.h"

struct terms {
    int n, cap, *value;
    int scope, place; // of the last to contribute
};

struct tape {
    struct graph *g;
    int n;                 // forward values
    int *cot;              // value → its cotangent, −1 until its producer is reached
    struct terms *terms;   // value → what its readers contributed so far
    bool *needs;           // value → a parameter can be reached from it
    int *grad_sum;         // parameter → its gradient's sum
    const struct node *at; // whose rule is at work: its outputs' cotangents may be passed on
};

// `contribution` flows into `value`'s cotangent. Ignored when nobody needs it.
void tape_add(struct tape *t, int value, int contribution);
bool tape_needs(const struct tape *t, int value);
// The dtype of contributions to a value: the value's own, but f32 where they make a parameter's
// gradient.
enum dtype tape_dtype(const struct tape *t, int value);
// The cotangent of a value whose readers have all contributed: zeros where none of them did.
int tape_cotangent(struct tape *t, int value);
// `by` times a cotangent, summed over the dimensions that `value` lacks.
int tape_reduce_to(struct tape *t, int cotangent, int value, float by);
// Call this when all readers of `value` have contributed: its cotangent is their sum.
void tape_settle(struct tape *t, int value);
