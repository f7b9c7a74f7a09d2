// SPDX-License-Identifier: Apache-2.0
// A decoder with cached keys, derived from the graph of a model's sample program: what a call computes
// is of its own `rows` tokens of each text, and attention reads the keys of those before them from
// caches, which outlive the run.
//
// Every value that has a row for each token (a dimension that runs along the data's sequence and is
// called `seq`) gets so many rows as the call has; numbers that the model's text made of the size seq
// stay. Attention's keys and values, as they come out of norms and rotary, are appended to a cache
// each, [batch, places, ..], before it reads them:
//
//     k [batch, rows, ..] ──► APPEND ─► [batch, places, ..] ─┐
//     cache ─────────────────►  │ in place                   ├─► ATTENTION, positions of keys: RING
//     positions, last ───────►  ┘                      q ────┘
//
// Inputs: the tokens and their positions, which follow each other, and each text's last position. Rows
// after it mean nothing: they are not appended, and the logits are of the last one's row. So texts of a
// call may have any number of tokens up to `rows`, or none, and a text that begins at position 0 needs
// no cache to be cleared. The row of position p is at place p mod places. There are as many places as
// the context has positions, or as its rows see where a window makes that fewer: the window, and what a
// call's later rows write over while its first still reads.
//
// Attention that a text writes out itself, with x{seq as key}, has caches of what it names so, where that
// first meets a query; keys' positions are the ring's. A parameter with a number for each position is read
// at the rows' own. Experts have a place for each token of a group of texts, so that who is in it changes
// a token's place but nothing else; the filled ones come first. What values are, and what is refused:
// token_class.h.
#pragma once
#include "common/compile/graph/graph.h"

struct cached_keys {
    int64_t rows;    // of a text in a call of this program
    int64_t widest;  // the most rows of a call of any program that shares the caches
    int64_t context; // positions that a text may have, at most the model's seq
    int64_t group;   // texts of a call among whose tokens experts' places are dealt
};

// `out` was made by graph_init; `name` is that of its program, for its inputs. ERR_UNSUPPORTED: the line
// of the model's text, and why.
int cached_keys_derive(const struct graph *sample, const struct cached_keys *sizes,
                       const char *name, struct graph *out);
