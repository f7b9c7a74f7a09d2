// SPDX-License-Identifier: Apache-2.0
// Programs, carried out in double precision: every rank of a mesh runs its stage's instructions
// over an arena laid out as planned. What a lowered program computes is held against the graph it
// was made from (interp.h): a buffer whose life is too short, an output over an input that is read
// later, scratch where something lies, a message packed or unpacked wrongly show as other numbers.
//
// Memory begins as no numbers at all, and so does scratch before every op that has some. Nothing is
// rounded to bf16, as in an interpreter that is exact. Ranks take turns, each as far as it comes; a
// collective is done when all of its group have come to it. Linked into tests only.
//
//   replay_init → replay_feed, a microbatch each → replay_run → replay_compare → replay_clear
#pragma once
#include "common/compile/program/memory_plan.h"
#include "tests/support/interp.h"

struct replay {
    const struct program *stages; // borrowed
    const struct memory *memory;  // of each stage
    int ranks;
    struct actor *actors;
};

// Parameters, state and scalars begin as `x` has them.
void replay_init(struct replay *r, const struct program *stages, const struct memory *memory,
                 const struct interp *x);
void replay_feed(struct replay *r, const struct interp *x, int microbatch); // inputs
// 0, or says why ranks wait for ever.
int replay_run(struct replay *r);
// The largest difference of parameters, state and metrics, in units of a value's largest element;
// tells those that are over `most`.
int replay_compare(const struct replay *r, const struct interp *x, double most);
void replay_clear(struct replay *r);
