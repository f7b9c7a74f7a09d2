// SPDX-License-Identifier: Apache-2.0
// Lowering: a partitioned graph and a schedule become instructions and buffers.
//
// Values that live for a step or longer have one buffer; temporaries have one a microbatch, each
// with its own lifetime. A contribution is written straight into its sum's buffer, adding to it
// from the second on. An elementwise op writes over an input that nobody reads afterwards; a SPLIT
// or STACK whose pieces lie in the whole (sharing.h) is no instruction. A collective starts where its
// node stands and is waited for before the first instruction that touches its buffer; so do sends
// and receives between stages, but a receive starts slots early. Where nodes stand is order.h's
// business, and which of them start together bucket.h's.
#pragma once
#include "common/compile/program/part.h"
#include "common/compile/program/program.h"
#include "common/compile/program/schedule.h"

// `part` and `s`: of the stage whose program is made.
void lower_stage(const struct graph *g, const struct mesh *m, const struct stage_part *part,
                 const struct schedule *s, int stage, enum program_kind kind, struct arena *a,
                 struct program *out);
