// SPDX-License-Identifier: Apache-2.0
// Pictures of a plan for a terminal: pure text from what was compiled, no line wider than asked.
//
//   mesh      which rank stands where
//   sharding  which devices hold which block of every parameter and activation
//   schedule  what each stage does when, and when it waits
//   memory    bytes by category, over the step, and what lives at its fullest moment
//
// What is too much to show is left out in the middle, behind an ellipsis.
#pragma once
#include "common/base/buf.h"
#include "common/compile/compile.h"

enum picture { PICTURE_MESH, PICTURE_SHARDING, PICTURE_SCHEDULE, PICTURE_MEMORY, PICTURE_KINDS };
const char *picture_name(enum picture p);

enum { PICTURE_NARROWEST = 40 }; // columns; less is taken for this
void picture_print(enum picture p, const struct compiled *c, int width, struct buf *out);
