// SPDX-License-Identifier: Apache-2.0
// A crew: the ranks that an instruction brings together, whatever rank looks at it. Each has a
// communicator of its own:
//   axes     those that differ on an ordered list of mesh axes
//   stages   those of some pipeline stages that share all other coordinates: a stage group
//   message  the two on both sides of a stage boundary, one crew each way: the lower stage's rank
//            comes first
// Pure: no world, no memory.
#pragma once
#include "common/compile/program/program.h"

struct crew {
    enum crew_kind { CREW_AXES, CREW_STAGES, CREW_MESSAGE } kind;
    struct dim_cut axes; // AXES
    int axis;            // the pipeline's, for the other two
    uint64_t stages;     // a bit each
    bool up;             // MESSAGE: from the lower stage to the higher
};

struct crew crew_of_axes(const struct dim_cut *axes);
struct crew crew_of_stages(const struct instr *start);
struct crew crew_of_message(const struct instr *i, int stage); // stage: of the program
bool crew_equal(const struct crew *a, const struct crew *b);
int crew_size(const struct crew *c, const struct mesh *m);
// Its ranks in the order of their coordinates in it, as `rank` sees it; their number.
int crew_ranks(const struct crew *c, const struct mesh *m, int rank, int *out);
// "[dp, tp]"; "pp 0,3"; "pp 1>2", "pp 2>1". Crews of one rank that differ have different names.
void crew_print(const struct crew *c, const struct mesh *m, struct buf *out);
