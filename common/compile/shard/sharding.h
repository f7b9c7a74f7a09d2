// SPDX-License-Identifier: Apache-2.0
// The job's sharding section on its mesh: which spec every parameter and every activation point
// wants.
//
//   sharding_resolve()  names become axes, entries become specs   (resolve.c)
//   sharding_check()    the specs are held against the tensors    (sharding_check.c)
//   sharding_spec()     the spec of a value                       (sharding.c)
//
// What cannot be (an unknown axis, one used twice, a cut that does not divide) becomes a fact and
// is left out, so that a plan can still be made and shown.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/compile/layout/zigzag.h"
#include "common/compile/shard/facts.h"
#include "common/job/job.h"

// The mesh axes that cut a logical dimension, in order.
struct rule {
    enum dim dim;
    struct dim_cut axes;
};
struct rules {
    struct dims *dims; // borrowed: the graphs'
    bool whole_seq;    // nothing but parameters is cut along the sequence: as FILL and STEP want it
    int n;
    struct rule rule[JOB_RULES];
};

struct refine {                   // see refine.h
    const struct job_refine *job; // null: none
    struct dim_cut axes;
    struct spec *specs; // one for each entry of job->params
};

struct sharding {
    struct rules rules;
    const struct job_sharding *job; // null: rules alone
    struct spec *params;            // one for each entry of job->params
    struct spec points[POINT_COUNT];
    bool given[POINT_COUNT]; // false: the job gives no spec there, and the rules make one
    struct refine grads, optimizer;
    axis_set gather;  // batch axes on which weights may be cut
    axis_set batch;   // axes that cut the batch at act_ids
    axis_set context; // axes that cut the sequence where causal attention works
    bool own_rows;    // of a sample's logits each device keeps those of its texts alone
    bool lenient;     // cuts that do not divide are left out; a fact has been added for each
    struct facts facts;
    int of_names; // how many facts, from the first, are about names; the rest are about tensors
};

// Everything lies in `a`; the job is borrowed, and `dims`, which gets the rules' names.
void sharding_resolve(struct sharding *s, const struct job *job, const struct mesh *m,
                      struct dims *dims, struct arena *a);
// Holds the specs against the tensors of the unpartitioned graph; sets s->context.
void sharding_check(struct sharding *s, const struct mesh *m, const struct graph *g);

// The order in which a program of this graph reads the data of a sequence of so many positions: that
// of the positions where something in it takes one for the other.
struct zigzag sharding_zigzag(const struct sharding *s, const struct mesh *m, const struct graph *g,
                              int64_t seq);

// The spec that the rules give a value: an axis used by an earlier dimension is skipped.
struct spec rules_spec(const struct rules *r, const struct mesh *m, const struct value *v);
// The dimension whose rule cuts this one: itself, or the nearest one that it is like and that has a
// rule; DIM_NONE: no rule cuts it.
enum dim rules_dim(const struct rules *r, enum dim dim);
const struct dim_cut *rules_axes(const struct rules *r, enum dim dim);
// The spec a parameter, or a value at an activation point, is to have.
struct spec sharding_spec(const struct sharding *s, const struct mesh *m, const struct value *v);
// As sharding_spec, but as the job asks for it: cuts that do not divide the value are still in it.
struct spec sharding_asked(const struct sharding *s, const struct mesh *m, const struct value *v);

// The first entry that matches a parameter, −1: none does.
int param_entry(int n, const struct job_param_spec *list, const struct value *v);
// The entry of sharding.params that a parameter has, or of sharding.activations that a value's
// point has; −1: its rules stand.
int sharding_entry(const struct sharding *s, const struct value *v);
// The dimensions of an entry's spec, up to the last that it cuts.
int entry_dims(const struct job_spec *s);
