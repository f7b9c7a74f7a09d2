// SPDX-License-Identifier: Apache-2.0
// The job's sharding section on its mesh: which spec every parameter and every activation point
// wants. Names become axes here; what cannot be (an unknown axis, one used twice, a cut that does
// not divide) becomes a finding with its fix and is left out, so that the plan can still be told.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/compile/layout/zigzag.h"
#include "common/explain/findings.h"
#include "common/job/job.h"

// Which mesh axes cut a logical dimension, in order.
struct rule {
    enum dim dim;
    struct dim_cut axes;
};
struct rules {
    int n;
    struct rule rule[DIM_COUNT];
};

struct refine {                   // see refine.h
    const struct job_refine *job; // null: none
    struct dim_cut axes;
    struct spec *specs; // of job->params
};

struct sharding {
    struct rules rules;
    const struct job_sharding *job; // null: rules alone
    struct spec *params;            // of job->params
    struct spec points[POINT_COUNT];
    bool given[POINT_COUNT]; // else the rules'
    struct refine grads, optimizer;
    axis_set gather;  // batch axes on which weights may be cut
    axis_set batch;   // axes that cut the batch at act_ids
    axis_set context; // axes that cut the sequence where causal attention works
    bool lenient;     // cuts that do not divide are left out: they are found already
};

void sharding_make(struct sharding *s, const struct job *job, const struct mesh *m,
                   struct findings *f);
// Holds the specs against the tensors of the unpartitioned graph; tells s->context.
void sharding_check(struct sharding *s, const struct job *job, const struct mesh *m,
                    const struct graph *g, struct findings *f);

// The order in which the data of a sequence of so many positions is read.
struct zigzag sharding_zigzag(const struct sharding *s, const struct mesh *m, int64_t seq);

// A setting (see findings.h) that gives one parameter a spec of its own.
const char *sharding_fix_param(const struct job *job, const struct mesh *m, const struct value *v,
                               const struct spec *spec, struct arena *a);

// The spec that the rules give a value: an axis used by an earlier dimension is skipped.
struct spec rules_spec(const struct rules *r, const struct mesh *m, const struct value *v);
// The spec a parameter, or a value at an activation point, is to have.
struct spec sharding_spec(const struct sharding *s, const struct mesh *m, const struct value *v);
