// SPDX-License-Identifier: Apache-2.0
// Graphs and programs as text: for a failed check, for people.
#pragma once
#include "common/compile/program/memory_plan.h"
#include "common/compile/program/program.h"

// A node a line, with shapes; with a mesh also specs.
void dump_graph(const struct graph *g, const struct mesh *m, struct buf *out);
// An instruction a line, with buffers and offsets. Depends on nothing but the job: the same on
// every rank.
void dump_program(const struct program *p, struct buf *out);
// What the numbers of one instruction are, its op's attributes: " labels=… scale=…".
void dump_attr(const struct op_attr *a, const struct instr *i, struct buf *out);
