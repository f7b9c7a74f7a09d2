// SPDX-License-Identifier: Apache-2.0
// A program: what one device runs for one step (or one evaluation batch), as a flat list of
// instructions over planned buffers. It is the same on every rank of a stage; what depends on the
// coordinate (whose part counts) is bound when a rank loads it.
//
// lower.c makes it from a partitioned graph and a schedule; memory_plan.c gives every buffer its
// offset.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/compile/layout/zigzag.h"

// The arena has two regions: buffers that collectives touch lie apart, since they are shared
// memory on a CPU host.
enum region { REGION_PRIVATE, REGION_SHARED, REGION_COUNT };

enum buffer_kind {
    BUFFER_PARAM,
    BUFFER_GRAD,
    BUFFER_OPTIMIZER,
    BUFFER_COPY,      // of a parameter
    BUFFER_CACHE,     // rows of keys
    BUFFER_STASH,     // made in a forward, read in a backward
    BUFFER_WORKSPACE, // scratch of one op
    BUFFER_TRANSIENT, // everything else of the step
};

struct buffer {
    int value;        // the value it was made for (of the partitioned graph)
    const char *name; // may be null
    enum buffer_kind kind;
    enum value_kind source;
    bool persistent; // keeps its place for the life of the job (or of the step: inputs, scalars)
    enum dtype dtype;
    struct shape shape; // local, of one microbatch
    int copies;         // inputs: one a microbatch, adjacent
    enum region region;
    uint64_t bytes, offset; // offset within its region
    int first, last;        // instructions between which it holds a value
};

// SEND and RECV are starts as well: a WAIT ends each. They cross to the device with the same
// other coordinates on the next stage or the one before. Each direction of each boundary between two
// stages has a communicator and a stream of its own, on which they are in order.
enum instr_kind { INSTR_OP, INSTR_START, INSTR_WAIT, INSTR_MARK, INSTR_SEND, INSTR_RECV };

struct view { // a buffer, or a part of it
    int buffer;
    struct dim_cut by; // bound by the rank: `step` bytes further for each place on these axes
    uint64_t offset;   // of a microbatch
    uint64_t step;
};

struct instr {
    enum instr_kind kind;
    int node; // of the partitioned graph; −1 for marks
    enum phase phase;
    int microbatch;
    enum op op;
    int nin, nout;
    const struct view *in, *out;
    int workspace; // buffer, −1 for none
    int with;      // so many instructions behind it go with it (fuse.h, bucket.h). OP: they may run
        // in the same call; START: they are started at once, and waited for at once
    bool accumulate;
    axis_set owner; // counts at coordinate 0 of these axes only
    enum reshard_kind collective;
    struct dim_cut group;       // START, WAIT: the communicator, in the order of its coordinates
    bool max;                   // the reduction is a maximum
    int start;                  // WAIT: the instruction that started it
    int axis;                   // SEND, RECV, a stage group's START: the mesh axis of the stages
    int peer;                   // SEND, RECV: the stage on the other side
    uint64_t stages;            // START of a stage group's sum: its stages, a bit each; `group` is
                                // empty: ranks that share all other coordinates. Else 0
    const struct op_attr *attr; // COPY: its own; else null, the node's
};

// No training has the last ones (compile_options.only). SCORE: how likely each token, or each label, of
// the data was. FILL and STEP: what SAMPLE gives, from the rows of a call and the keys of those before
// them (graph/cached_keys.h): so many rows of each text at once, or one.
enum program_kind {
    PROGRAM_TRAIN,
    PROGRAM_EVAL,
    PROGRAM_SAMPLE,
    PROGRAM_SCORE,
    PROGRAM_FILL,
    PROGRAM_STEP,
    PROGRAM_KINDS
};
const char *program_name(enum program_kind k);

struct program {
    enum program_kind kind;
    struct mesh mesh;
    int stage;                 // of the pipeline; 0 without one
    const struct graph *graph; // partitioned: the nodes of all stages
    int microbatches;
    struct zigzag zigzag; // of the columns of inputs with a sequence
    int ninstrs, instrs_cap, nbuffers, buffers_cap;
    struct instr *instrs;
    struct buffer *buffers;
    int metrics; // buffer of the metrics vector
};

// Buffer by name, −1. An input that is cut has its spec behind its name: "images [dp, ~]".
int program_find(const struct program *p, const char *name);
// The batch positions of a microbatch that a rank reads: what covers its part of every input.
void program_rows(const struct program *p, int rank, int64_t *first, int64_t *count);
const struct op_attr *program_attr(const struct program *p, const struct instr *i);
// Whether a START and those that go with it are one collective, over their buffers, which lie one behind
// the other; else each is one of a group.
static inline bool instr_is_flat(const struct instr *i)
{
    return i->kind == INSTR_START && i->with && i->collective == RESHARD_ALL_REDUCE;
}
// How many elements the collective of a flat START works on, with those of the ones that go with it and
// of what lies between their buffers, which nobody reads.
int64_t program_span(const struct program *p, const struct instr *start);
// Whether a START before it does what a START starts, or a WAIT waits for.
bool program_goes_with(const struct program *p, const struct instr *i);
