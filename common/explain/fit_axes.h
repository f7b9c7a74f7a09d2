// SPDX-License-Identifier: Apache-2.0
// Which axes of a job hold its batch, its stages and its heads. Inside explain/ only.
//
// The job's own rules say so, whatever the axes are called. The devices along these axes may be dealt
// out anew; other axes (those that cut one dimension of some tensors) stay.
#pragma once
#include "common/explain/fit_try.h"

struct fit_axes {
    // Names for a mesh of this job, of its own axes or of ones that its rules name and its mesh lacks;
    // null: its rules name none.
    const char *batch, *stage, *heads;
    bool dealt[MESH_MAX_AXES]; // axes of the job whose devices may be dealt out
    int64_t devices;           // along these
};
// `all`: axes for context and experts are dealt out too.
void fit_axes_find(const struct job *job, bool all, struct fit_axes *out);
// Whether an axis's name is the user's own, and none that weft knows: rules may name such an axis
// only while the mesh has it.
bool fit_axis_own(const char *name);
// Whether two names mean one axis, and whether a name means one that `names` has: an axis may be
// called by several names (dp, data).
bool fit_axis_same(const char *one, const char *other);
bool fit_axis_among(const struct job_names *names, const char *axis);
