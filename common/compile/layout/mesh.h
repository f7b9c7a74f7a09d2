// SPDX-License-Identifier: Apache-2.0
// A mesh: devices in a named grid, row-major: rank = ((c0·n1 + c1)·n2 + c2)… . A set of axes is a
// bit mask in mesh order. Axes of size 1 count as absent everywhere else in the compiler.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/op/op.h"

enum { MESH_MAX_AXES = MAX_AXES, MESH_MAX_NAME = MAX_AXIS_NAME + 1 };
typedef uint16_t axis_set; // bit i: axis i

struct mesh_axis {
    char name[MESH_MAX_NAME];
    int size;
};
struct mesh {
    int n;
    struct mesh_axis axis[MESH_MAX_AXES];
    axis_set stages; // the axis, if any, along which a pipeline's stages lie: it cuts no tensor
};

int mesh_ranks(const struct mesh *m);
int mesh_coord(const struct mesh *m, int rank, int axis);
axis_set mesh_all(const struct mesh *m);  // every axis of size > 1
axis_set mesh_cuts(const struct mesh *m); // of these, those that may cut tensors
int mesh_product(const struct mesh *m, axis_set axes);
// The ranks that differ from `rank` on `axes` only, in row-major order of those axes; `out` holds
// mesh_product() of them. Returns their number.
int mesh_group(const struct mesh *m, int rank, axis_set axes, int *out);
void mesh_print(const struct mesh *m, struct buf *out);                    // {dp: 2}
void axis_set_print(const struct mesh *m, axis_set axes, struct buf *out); // dp,tp
const char *axis_set_text(const struct mesh *m, axis_set axes, struct arena *a);
