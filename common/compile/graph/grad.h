// SPDX-License-Identifier: Apache-2.0
// Reverse mode: adds the backward part to a graph that has a forward part and a loss.
//
// The nodes are walked from last to first; each output's cotangent is the sum of what its readers
// contributed, and the op's vjp rule turns it into contributions to the inputs. Cotangents carry
// their value's activation point, and the scope and stage of the earliest reader, where the sum is
// made. A parameter's contributions go into its gradient sum, "grad/<name>", over all microbatches.
#pragma once
#include "common/compile/graph/graph.h"

struct terms {
    int n, cap, *value;
    int scope, stage; // of the last to contribute
};

struct tape {
    struct graph *g;
    int n;                 // forward values
    int *cot;              // value → its cotangent, −1 until its producer's turn
    struct terms *terms;   // value → what its readers contributed so far
    bool *needs;           // value → a parameter can be reached from it
    int *grad_sum;         // parameter → its gradient's sum
    const struct node *at; // whose rule is at work: its outputs' cotangents may be passed on
};

int grad_build(struct graph *g); // 0 or the graph's failure

// For vjp rules: `contribution` flows into `value`'s cotangent. Ignored when nobody needs it.
void tape_add(struct tape *t, int value, int contribution);
bool tape_needs(const struct tape *t, int value);
// The parameter that a value is, or is the copy of in the compute dtype; −1: neither.
int tape_param(const struct tape *t, int value);
// Of what flows into a value: the value's own, f32 into a parameter's gradient.
enum dtype tape_dtype(const struct tape *t, int value);
// A cotangent summed over the dimensions that `value` lacks, times `scale`.
int tape_reduce_to(struct tape *t, int cotangent, int value, float scale);
