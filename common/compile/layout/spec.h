// SPDX-License-Identifier: Apache-2.0
// A PartitionSpec: for each dimension the ordered list of mesh axes that cut it, major first, and
// the axes over which the value is partial, by sum or by max. [dp, fsdp] is not [fsdp, dp].
#pragma once
#include "common/base/json.h"
#include "common/compile/layout/mesh.h"
#include "common/op/op.h"

struct dim_cut {
    uint8_t n;
    uint8_t axis[MESH_MAX_AXES];
};
struct spec {
    struct dim_cut dim[MAX_DIMS]; // beyond the tensor's dimensions: uncut
    axis_set partial_sum, partial_max;
};

axis_set dim_axes(const struct dim_cut *c);
axis_set spec_axes(const struct spec *s);    // every axis that cuts some dimension
axis_set spec_partial(const struct spec *s); // sum or max
bool dim_equal(const struct dim_cut *a, const struct dim_cut *b);
bool spec_equal(const struct spec *a, const struct spec *b); // cuts and partials
bool spec_same_cuts(const struct spec *a, const struct spec *b);
void dim_append(struct dim_cut *c, int axis);

// The group of `rank` over the axes of a cut: the ranks that differ from it there only, in the
// cut's order (its first axis major), dim_parts() of them. cut_place() is its place among them.
int cut_group(const struct mesh *m, int rank, const struct dim_cut *c, int *out);
int cut_place(const struct mesh *m, int rank, const struct dim_cut *c);

// Parts a dimension is cut into, and the local shape. The caller checked that cuts divide.
int dim_parts(const struct mesh *m, const struct dim_cut *c);
bool spec_divides(const struct spec *s, const struct mesh *m, const struct shape *shape, int *bad);
// Returns the spec without the axes by which a dimension does not divide; minor ones go first.
struct spec spec_that_divides(const struct spec *s, const struct mesh *m,
                              const struct shape *shape);
struct shape spec_local(const struct spec *s, const struct mesh *m, const struct shape *global);
// Where `rank`'s part begins, a value a dimension.
void spec_start(const struct spec *s, const struct mesh *m, const struct shape *global, int rank,
                int64_t start[MAX_DIMS]);

void dim_cut_print(const struct dim_cut *c, const struct mesh *m, struct buf *out);
// "[dp, ~]", "[[dp, fsdp], ~] partial(tp)"; n: the tensor's dimensions.
void spec_print(const struct spec *s, const struct mesh *m, int n, struct buf *out);
// Writes a spec as JSON, an entry a dimension: [null, "dp", ["dp", "fsdp"]]; without partial axes.
void spec_json(const struct spec *s, const struct mesh *m, int n, const char *key,
               struct json_out *w);
