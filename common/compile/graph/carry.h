// SPDX-License-Identifier: Apache-2.0
// What a value's dimensions carry beside their names and sizes, from an op's operands to what it
// makes, through renames and other orders:
//
//   born    the dimension runs along the data's samples or along its sequence, whatever it is called
//   limit   what lies from there on is padding: zero, but in what DIV and LOG are given
//   share   the value is a sum over the samples of a microbatch: a share of the step's
//
// Two things follow that the text of a model does not show, and the first place of each is noted in
// the graph. `ordered`: an op takes the order in which a sequence lies in memory for that of its
// positions, so that it must lie so (sharding_zigzag). `mixed`: what a microbatch's samples come to
// together is read as if it were the step's, which holds with one microbatch alone.
// Inside common/compile/graph/ only.
#pragma once
#include "common/compile/graph/graph.h"

// The most loops of an op, over all of its operands.
enum { CARRY_LOOPS = MAX_DIMS * 4 };

// Sets born, limit and share of the node's outputs, and notes what it takes for granted. Operands
// that disagree about a limit: ERR_INVALID with g->err set.
int carry_dims(struct graph *g, const struct node *n);
// Whether what the node makes is zero in the padding of dimension d of its first output.
bool carry_keeps_zeros(const struct graph *g, const struct node *n, int d);
