// SPDX-License-Identifier: Apache-2.0
// The f64 interpreter: runs a graph, whole or partitioned over the virtual ranks of a mesh, in
// double precision with the plain reference ops. What it computes is what the graph means; vjps,
// the partitioner and programs are held against it. Never linked into weft-rank.
#pragma once
#include "common/compile/graph/graph.h"

struct interp {
    const struct graph *g;
    struct mesh mesh; // one rank for a graph that is not partitioned
    int ranks, microbatches;
    bool exact;     // bf16 is not rounded to: what a graph means, whatever its dtypes
    uint64_t sent;  // values that crossed from stage to stage, of all ranks together
    double **value; // [rank · nvalues + value], local, row-major; aliases share
};

void interp_init(struct interp *x, const struct graph *g, const struct mesh *m, int microbatches);
void interp_clear(struct interp *x);
struct shape interp_shape(const struct interp *x, int value); // local
int interp_find(const struct interp *x, const char *name);    // the first value of that name

// Writes a whole tensor to every rank's part of it (parameters, state, scalars).
void interp_set(struct interp *x, const char *name, const double *whole);
// Element i of what a cache of the graph may begin with: no number, where attention alone reads it, which
// reads no row that is not there. What a text writes out itself multiplies hidden rows by 0.
double interp_junk(const struct graph *g, int cache, int64_t i);
// An input of a step: `whole` holds all microbatches, one after the other.
void interp_feed(struct interp *x, const char *name, const double *whole, int microbatch);
// Gathers a value from its parts; fails the test when replicas differ. Caller frees.
double *interp_get(const struct interp *x, const char *name);

// Runs the nodes of one phase (the update ignores the microbatch). A backward in two is run whole.
void interp_phase(struct interp *x, enum phase phase, int microbatch);
