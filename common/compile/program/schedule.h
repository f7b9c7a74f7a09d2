// SPDX-License-Identifier: Apache-2.0
// The schedule: for each stage, the order in which it runs the phases of a step's microbatches.
//
//   1f1b         a few forwards to fill the stages behind, then a forward and a backward in turn: at
//                most as many microbatches are under way on a stage as there are stages from it on
//   gpipe        all forwards, then all backwards
//   interleaved  1f1b over chunks: a stage has several runs of layers, and the microbatches pass the
//                ring of stages once for each chunk, as many at a time as there are stages
//   circular     gpipe over chunks: all microbatches pass the ring for one chunk, then for the next
//   zero_bubble  1f1b whose backward is two slots: the weights' gradients, which no other stage waits
//                for, are made later, where a stage would have waited for work
//
//   F F F F . . . B W B W    stage 0 of 4 under zero_bubble: it makes the gradients of weights (W)
//   . F F F . . B B W F B    at once, stage s holds those of s microbatches back
//
// Of p stages, m microbatches that fill them, v chunks; F, B, W the times of a whole stage:
//
//   kind         a stage waits   under way on the first stage   p = 4, m = 8, v = 2
//   1f1b         (p−1)(F+B)      p microbatches                 27 %   4
//   gpipe        (p−1)(F+B)      m                              27 %   8
//   interleaved  (p−1)(F+B)/v    2(p−1) + (v−1)p + 1 chunks     16 %   11 halves
//   circular     (p−1)(F+B)/v    v m chunks                     16 %   16 halves
//   zero_bubble  (p−1)(F+B−W)    p, as on every stage           11 %   4
//
// B is 2F; under zero_bubble B = W = F. (JAX's circular pipelines run the loop of the forward
// backwards, and so take the last microbatch first. Here all backwards begin with microbatch 0, for
// the sums' sake: see below. What stages wait and keep is the same.)
//
// All five are one table: the forwards in an order, the backwards in an order, how many forwards
// come before the first backward, and how many backwards before the first W. With one stage it is
// gradient accumulation: forward and backward of each microbatch, then the update. Within a chunk
// each phase takes the microbatches in their order, so that gradients are sums in one order,
// whatever the schedule.
//
// How stages meet: a slot's receives are started when the slot `receive` begins, its own or one before
// it. A stage takes in what a slot needs, computes, and sends. The simulator lets a send block until
// its receiver has begun to receive. What passes it cannot deadlock, however little the transport
// buffers.
//
// All messages of all stages lie in one order: by the times at which they are computed, at equal times
// by the senders' numbers; one whose receiver is behind waits until that begins to receive. Every stage
// starts its sends and receives in this order, so it may also do them strictly one after the other
// (transport.h). Where two stages end a slot at one time and send to each other, the lower one's message
// comes first: the upper one receives it before it sends its own, the lower one receives that behind its
// own. A receive that would otherwise start before an earlier message is sent is put right behind that.
#pragma once
#include "common/base/arena.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"

struct slot {
    enum phase phase;
    int microbatch, chunk;
    int receive;       // the slot at whose beginning its receives start: its own or one before it
    double start, end; // schedule_simulate(): in forwards of one layer
};
struct schedule { // of one stage
    int n;
    struct slot *slots;
    int nreceives, *receives; // slots that receive, in the order in which their receives start
    int microbatches, chunks;
};

// What a schedule is made for.
struct schedule_of {
    enum program_kind program; // all but PROGRAM_TRAIN have no backward
    enum job_pipeline_schedule kind;
    int microbatches, stages, chunks;
    // How many layers each chunk of each stage has, in the order of the model: chunk c of stage s
    // is number c · stages + s. A chunk of 0 layers, in a model that is not made of layers, takes
    // the time of 1.
    const int64_t *layers;
};

// Fills in the schedules of all stages. ERR_INTERNAL: the stages block each other.
int schedule_build(struct schedule *stages, struct arena *a, const struct schedule_of *of,
                   struct err *e);
// Checks of one stage that each microbatch has each of its phases once in each chunk, in order, and
// that one update comes last.
int schedule_verify(const struct schedule *s, const struct schedule_of *of, struct err *e);

struct schedule_cost {
    double makespan; // in forwards of one layer; a backward takes two, the update nothing
    double bubble;   // idle / (stages × makespan)
    // The most that a stage has under way: chunks of microbatches whose forward it has run, and not
    // yet the last of their backward.
    int peak_stash;
};
// Simulates the schedules of all stages together. ERR_INTERNAL: the stages block each other; the
// message says who waits for what.
int schedule_simulate(struct schedule *stages, const struct schedule_of *of,
                      struct schedule_cost *out, struct err *e);
