// SPDX-License-Identifier: Apache-2.0
// The mesh and the sharding section of a job file: axes, rules and PartitionSpecs as the file gives
// them. What they mean for tensors is decided by the compiler (common/compile).
#pragma once
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/schema.h"
#include "common/op/op.h"
#include "common/op/point.h"

enum { JOB_MAX_DEVICES = 65536 }; // of a mesh

struct job_axis {
    const char *name; // "dp" or "data"
    int64_t size;     // at least 1: -1 of the file is resolved
};
struct job_mesh { // row-major: the last axis varies fastest over ranks
    int n;
    struct job_axis axis[MAX_AXES];
};

// Names of mesh axes, or of rules that stand for their axes. The first cuts coarsest; none: uncut.
enum { JOB_SPEC_DIMS = MAX_DIMS, JOB_RULES = 64, JOB_POINTS = POINT_COUNT - 1 };
struct job_names {
    int n;
    const char **name;
};
struct job_spec { // a PartitionSpec: dimensions that are left out are uncut
    int n;
    struct job_names dim[JOB_SPEC_DIMS];
    int line; // of the job file; 0: an override gave it
};
struct job_rule { // which axes cut a logical dimension
    const char *dim;
    struct job_names axes;
    int line; // of the job file; 0: a default or an override gave it
};
struct job_param_spec {     // of the parameters that it matches; the first match wins
    const char *match;      // a glob as in struct job_param_group
    struct schema_list min; // int64_t: matches from these sizes on, dimension by dimension
    struct job_spec spec;
};
struct job_point_spec {
    const char *point; // "act_seq"
    struct job_spec spec;
};
// How gradients or optimiser state are cut further than their parameters: on axes, each of which
// cuts the largest local dimension that it divides, or by specs as for parameters. Neither: they
// are cut as the parameters are.
struct job_refine {
    struct job_names axes;
    int n_params;
    struct job_param_spec *params;
    int line; // 0: a default's or an override's
};
struct job_sharding {
    int n_rules, n_params, n_points;
    struct job_rule rules[JOB_RULES];
    struct job_param_spec *params;
    struct job_point_spec points[JOB_POINTS];
    struct job_names gather; // batch axes on which weights may be cut and gathered
    struct job_refine grads, optimizer;
};
// The mesh axis that a name stands for; dp and data, for instance, are two names of one axis. −1:
// the name is a usual one but the mesh has no such axis; −2: the name is unknown.
int job_axis_find(const struct job_mesh *mesh, const char *name);
struct job;
// ERR_INVALID: it asks for more devices than a job runs on (RANK_MAX). A plan may be of any size, and
// then takes long, so whoever is about to run a job checks this before planning it.
int job_check_devices(const struct job *job, struct err *e);
// The rule of a dimension, or null.
const struct job_rule *job_rule_find(const struct job_sharding *s, const char *dim);
void job_spec_print(const struct job_spec *s, struct buf *to);   // "[batch, [seq, tp], null]"
void job_names_print(const struct job_names *s, struct buf *to); // "tp", "[a, b]", "null"
void job_params_print(int n, const struct job_param_spec *params, struct buf *to);
void job_refine_print(const struct job_refine *r, struct buf *to);
