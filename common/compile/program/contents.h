// SPDX-License-Identifier: Apache-2.0
// Part of the verifier: follows what lies in the buffers of a program's temporaries, instruction by
// instruction, and sees that each op reads the values that its node names. A piece of a whole may
// lie in it (sharing.h), so a buffer holds several values side by side.
// Inside common/compile/program/ only.
#pragma once
#include "common/compile/program/program.h"

int contents_check(const struct program *p, struct err *e);
