// SPDX-License-Identifier: Apache-2.0
// Segments: a program cut where the host must act (at collectives, unless their transport is
// captured too), and where its stream meets another: where its inputs have been read, and before it
// changes what a save still copies. What lies between is queued without the host looking at it, so
// it is captured once and replayed as one graph.
// Inside worker/rank/exec/ only.
//
//   FRESH ── first run, op by op ──► WARM ── second run, captured ──► GRAPH ── replayed ──►
//                                      └── capture failed ──► PLAIN ── op by op ──►
//
// The first run is op by op because libraries choose algorithms and make code at a shape's first
// use, which no capture may hold. When a capture fails no other is tried: one line says why, and
// all that is not a graph yet runs op by op. So does everything on a backend without capture.
//
// Pure bookkeeping: what an instruction does is the caller's. One thread.
#pragma once
#include "common/compile/program/program.h"
#include "kernels/backend.h"

enum segment_state { SEGMENT_FRESH, SEGMENT_WARM, SEGMENT_GRAPH, SEGMENT_PLAIN };
struct segment {
    int first, end; // instructions [first, end)
    bool queued;    // nothing in it needs the host; else it is one instruction
    enum segment_state state;
    void *graph;
};

struct segments {
    const struct backend *backend; // borrowed, as is the stream
    struct stream_q *q;
    struct segment *segment; // the arena's
    int n;
    bool plain; // no more captures
    // Of a program:
    int inputs_read;  // the last reader of inputs lies before this instruction
    int state_writes; // the first that changes what a checkpoint holds; −1: none
};

// queued[i]: instruction i needs no host. cut[i]: a segment ends before i. Both [n].
void segments_init(struct segments *s, const struct backend *b, struct stream_q *q, struct arena *a,
                   const bool *queued, const bool *cut, int n);
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
