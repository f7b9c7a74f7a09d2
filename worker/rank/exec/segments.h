// SPDX-License-Identifier: Apache-2.0
// Segments: a program cut where the host must act (where a collective starts or is waited for, unless
// the transport is captured too), and where its stream meets another: where its inputs have been
// read, and before it changes what a save still copies. What lies between is queued without the host
// looking at it, so it is captured once and replayed as one graph.
// Inside worker/rank/exec/ only.
//
//   FRESH ── first run, op by op ──► WARM ── second run, captured and op by op ──► CAPTURED
//                                                                                    │
//                               all ranks could: GRAPHS, replayed  ◄── they agree ───┤
//                               one could not:   PLAIN, op by op   ◄─────────────────┘
//
// The first run is op by op because libraries choose algorithms and make code at a shape's first
// use, which no capture may hold. The second leaves what it captures for later, so that no rank replays
// what another runs op by op: collectives of one communicator then are of one kind on all ranks. Where a
// capture fails the run continues op by op, and no rank tries another of this program. On a backend
// without capture a program is PLAIN from its beginning.
//
// Pure bookkeeping: what an instruction does is the caller's, and so is the agreement. One thread.
#pragma once
#include "common/compile/program/program.h"
#include "kernels/backend.h"

enum segments_state {
    SEGMENTS_FRESH,
    SEGMENTS_WARM,
    SEGMENTS_CAPTURED,
    SEGMENTS_GRAPHS,
    SEGMENTS_PLAIN
};

// What an instruction asks for.
enum segment_part {
    PART_HOST, // the host: it is a segment of its own
    PART_OP,   // work of the device
    PART_NONE, // a mark at most
};

struct segment {
    int first, end; // instructions [first, end)
    bool queued;    // nothing in it needs the host; else it is one instruction
    bool worth;     // it holds enough for a graph
    void *graph;    // null: it has none, and runs op by op
};

struct segments {
    const struct backend *backend; // borrowed, as is the stream
    struct stream_q *q;
    struct segment *segment; // the arena's
    int n;
    enum segments_state state;
    struct err failed; // why a capture failed; code 0: none did
    // Of a program:
    int inputs_read;  // the last reader of inputs lies before this instruction
    int state_writes; // the first that changes what a checkpoint holds; −1: none
};

// cut[i]: a segment ends before i. Both [n].
void segments_init(struct segments *s, const struct backend *b, struct stream_q *q, struct arena *a,
                   const enum segment_part *part, const bool *cut, int n);
// Cuts a program behind the last reader of its inputs and before the first change of what a
// checkpoint holds. captured: the transport's calls need no host either.
void segments_of_program(struct segments *s, const struct backend *b, struct stream_q *q,
                         struct arena *a, const struct program *p, bool captured);
void segments_clear(struct segments *s); // a zeroed one is fine

// Runs one segment; `issue` queues its instructions. After an error of the backend the caller adds
// which instructions they were.
int segment_run(struct segments *s, struct segment *g,
                int (*issue)(void *ctx, int first, int end, struct err *e), void *ctx,
                struct err *e);
// A run has come to its end. True: the ranks are to agree now, by `failed` of each; then the program
// is replayed, or stays PLAIN.
bool segments_ran(struct segments *s);
void segments_decide(struct segments *s, bool replay);
