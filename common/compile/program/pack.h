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
// side by side in what it reads. A copy that is turned is cast again in each step (copies.h keeps
// only what lies as its parameter does): 6 bytes an element, once a step, however many read it.
//
// The gradient's product cannot be one of n times as many columns: in [n, embed, heads, d] column
// (i, j) of row e lies at i·embed·heads·d + e·heads·d + j, and neither a matrix nor its transpose
// with one stride from row to row has that. The n batches are one launch with as many tiles as the
// one product would have, and each reads x^T again: of GPT-2 124M 0.2 GB a layer, of L2 where it
// still lies there, beside 232 GFLOP. It takes a parameter that is stored as [embed, n, ..] with its
// gradient and the optimiser's state, whose ops see elements and no dimensions, and a checkpoint
// that names the dimensions in the parameter's own order; then the update would write the turned
// copy too, and these casts would go.
//
// It is done for all that a parameter's copy leads to, or not at all: where anything else reads these
// values (a collective, a norm of the keys, dropout of weights), they stay as they are.
#pragma once
#include "common/compile/graph/graph.h"

// On a partitioned graph with its stages, before copies and fusion. For backends whose attention reads
// packed heads faster than products of their own cost: today CUDA, in bf16.
void pack_heads(struct graph *g);
