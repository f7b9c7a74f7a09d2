// SPDX-License-Identifier: Apache-2.0
// The group of an instruction: the ranks that take part in its collective, whichever of them looks
// at it. Each group has a communicator of its own:
//
//   axes      START          the ranks that differ on an ordered list of mesh axes
//   stages    START          those of some stages of a pipeline that share all other coordinates
//   boundary  SEND, RECV     the two on both sides of a stage boundary, one group each way: the
//                            lower stage's rank comes first. The boundary at which the ring of
//                            stages closes is another, also between the same two of two
#pragma once
#include "common/compile/program/program.h"

struct group {
    enum group_kind { GROUP_AXES, GROUP_STAGES, GROUP_BOUNDARY } kind;
    struct dim_cut axes; // AXES
    int axis;            // the pipeline's, for the other two
    uint64_t stages;     // a bit each
    bool up, closing;    // BOUNDARY: from the lower stage to the higher; of the ring's ends
};

struct group group_of(const struct instr *i, int stage); // stage: of the program
bool group_equal(const struct group *a, const struct group *b);
int group_size(const struct group *g, const struct mesh *m);
// Lists the ranks of the one group that has `rank`, by their coordinates in it; returns how many.
int group_ranks(const struct group *g, const struct mesh *m, int rank, int *out);
// "[dp, tp]"; "pp 0,3"; "pp 1>2", "pp 2>1", "pp 3>0 closing". Groups of one rank that differ have
// different names.
void group_print(const struct group *g, const struct mesh *m, struct buf *out);
// How many groups the programs of a rank use, one of each kind. ERR_LIMIT: more than COMMUNICATORS.
int group_count(struct program *const *programs, int n, int *count, struct err *e);
