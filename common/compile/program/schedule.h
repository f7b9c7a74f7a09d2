// SPDX-License-Identifier: Apache-2.0
// The schedule: for each stage, the order in which it runs the phases of a step's microbatches.
//
//   1f1b   a few forwards to fill the stages behind, then a forward and a backward in turn: at most
//          as many microbatches are under way on a stage as there are stages from it on
//   gpipe  all forwards, then all backwards
// With one stage it is gradient accumulation: forward and backward of each microbatch, then the
// update. A schedule is verified (each stage for itself) and simulated (all together) before it is
// used.
//
// How stages meet: a stage starts the receives of its next slot as it begins a slot, takes in what
// the slot needs, computes, and sends. The simulator lets a send block until its receiver has begun
// the slot before the one that receives it, or one behind. What passes it cannot deadlock, however
// little the transport buffers.
#pragma once
#include "common/base/arena.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"

struct slot {
    enum phase phase;
    int microbatch;
    double start, end; // schedule_simulate(): in forwards of one layer
};
struct schedule { // of one stage
    int n;
    struct slot *slots;
    int microbatches;
};

void schedule_build(struct schedule *s, struct arena *a, enum program_kind kind, int microbatches,
                    enum job_pipeline_schedule how, int stage, int nstages);
// Checks that each microbatch has each of its phases once and in order, and one update comes last.
int schedule_verify(const struct schedule *s, enum program_kind kind, struct err *e);

struct schedule_cost {
    double makespan; // in forwards of one layer; a backward takes two, the update nothing
    double bubble;   // idle / (stages × makespan)
    int peak_stash;  // the most microbatches whose forward, but not backward, a stage has run
};
// Simulates the schedules of all stages together. `layers` has the number of layers of each stage;
// a stage of 0 layers, in a model that is not made of layers, takes the time of one. ERR_INTERNAL:
// the stages block each other; the message says who waits for what.
int schedule_simulate(struct schedule *s, int nstages, const int64_t *layers,
                      struct schedule_cost *out, struct err *e);
