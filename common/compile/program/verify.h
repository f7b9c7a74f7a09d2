// SPDX-License-Identifier: Apache-2.0
// Checks after every pass. A failure is a bug of ours or of a model file: the error says what is
// wrong and the caller prints the graph (dump.h).
#pragma once
#include "common/compile/program/memory_plan.h"
#include "common/compile/program/program.h"

// Checks a graph: each value has one producer, which comes before its readers; labels and sizes
// agree; phases never go back; each node's stage and scope exist.
int verify_graph(const struct graph *g, struct err *e);
// Besides that: every cut divides its dimension evenly, no op reads a partial sum that it needs
// whole, and every reshard's step leads from the spec of its input to that of its output.
int verify_partitioned(const struct graph *g, const struct mesh *m, struct err *e);
// Reads see what was written, buffers that live together do not overlap, collectives are waited
// for before anybody touches their operand, everything lies inside its region.
int verify_program(const struct program *p, const struct memory *m, struct err *e);
// All starts of all stages lie in one order: what is sent is received, what is summed over stages
// comes to all of them, and nothing waits for ever where each rank does its starts one after the other.
int verify_stages(const struct program *stages, int n, struct err *e);
