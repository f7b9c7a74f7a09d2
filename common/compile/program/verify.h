// SPDX-License-Identifier: Apache-2.0
// Checks after every pass. A failure is a bug of ours or of a model file: the error says what is
// wrong and the caller prints the graph (dump.h).
#pragma once
#include "common/compile/program/memory_plan.h"
#include "common/compile/program/program.h"

// Order, single producers, labels and sizes; phases never go back; a node's stage and scope exist.
int verify_graph(const struct graph *g, struct err *e);
// Besides that: every cut divides, nothing partial is read by an op that needs it whole, every
// collective resolves what it says.
int verify_partitioned(const struct graph *g, const struct mesh *m, struct err *e);
// Reads see what was written, buffers that live together do not overlap, collectives are waited
// for before anybody touches their operand, everything lies inside its region.
int verify_program(const struct program *p, const struct memory *m, struct err *e);
// The stages' programs meet: what is sent is received, in the same order on each
// stream, and they come to their end even where a send waits for its receiver.
int verify_stages(const struct program *stages, int n, struct err *e);
