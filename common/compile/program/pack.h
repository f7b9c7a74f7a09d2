// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values that one product makes lie beside each other in its rows.
//
// As a model is built, a parameter [n, embed, heads, head_dim], where n is 3 (q, k and v) or 2 (k and
// v), makes [n, batch, seq, heads, head_dim]: n products, which SPLIT takes apart for attention. The
// way back is a product for each of them, added up in f32. This pass turns the n inward:
//
//   the parameter's bf16 copy    [n, embed, heads, d]       → [embed, n, heads, d], by its cast
//   what the products make       [n, batch, seq, heads, d]  → [batch, seq, n, heads, d]
//   SPLIT, ROTARY, ATTENTION     of q, k and v              → ROTARY_PACKED, ATTENTION_PACKED
//   ATTENTION_GRAD .. STACK      of dq, dk and dv           → ATTENTION_PACKED_GRAD, ROTARY_PACKED
//
// So forward and back are one product each, n times as wide, and deep. The parameter, its gradient
// and the optimiser's state stay [n, ..]: the gradient's product has n batches, whose columns lie
// side by side in what it reads. A copy that is turned is cast anew in each step (copies.h keeps
// only what lies as its parameter does): 6 bytes an element, once a step.
//
// It is done for all that a parameter's copy leads to, or not at all: where anything else reads these
// values (a collective, a norm of the keys, dropout of weights), they stay as they are.
#pragma once
#include "common/compile/graph/graph.h"

// On a partitioned graph with its stages, before copies and fusion. For backends whose attention reads
// packed heads faster than products of their own cost: today CUDA, in bf16.
void pack_heads(struct graph *g);
