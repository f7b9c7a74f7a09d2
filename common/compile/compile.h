// SPDX-License-Identifier: Apache-2.0
// The compiler: from a job to its programs and its plan. Pure: no I/O, no threads, no device; every
// rank, the client and the coordinator run it alike. The passes are drawn in the README.
//
// The model's builder is handed in, so that this folder knows no model (plan/plan.h does).
#pragma once
#include "common/compile/program/memory_plan.h"
#include "common/compile/program/program.h"
#include "common/compile/program/schedule.h"
#include "common/compile/shard/sharding.h"
#include "common/job/job.h"

// Emits the forward part of one microbatch: `batch` samples of it, `step_batch` of the whole step.
// Leaves g->loss and, for an evaluation, g->parts. For samples: the sum "logits" [batch, vocab] of
// each position's last token. For scores: the sum "scores" [2, batch, seq], which is −ln of how likely
// each target was, and then 1 where it was the most likely. Returns g->failed.
typedef int (*build_fn)(struct graph *g, const struct job *job, enum program_kind kind,
                        int64_t batch, int64_t step_batch);

struct compiled {
    struct mesh mesh;
    struct dims *dims; // the names in all graphs
    int nstages;       // of the pipeline, at most JOB_MAX_STAGES; 1 without one
    int axis;          // of the mesh, along which the stages lie; −1 without a pipeline
    int nchunks;       // of each stage; 1 but for the schedules that pass the stages several times
    int64_t *layers;   // of chunk c of stage s at c · nstages + s
    struct schedule *schedule[PROGRAM_KINDS]; // one a stage, with its times
    struct schedule_cost schedule_cost;       // of the train program
    // The program by which parameters lie on the devices: train, or the one that was asked for alone.
    enum program_kind holder;
    struct program *program[PROGRAM_KINDS];    // one a stage; compiled_program()
    const struct graph *global[PROGRAM_KINDS]; // before partitioning; null: that failed
    struct sharding *sharding;                 // the specs, and what is wrong with them
    const char *keyless; // why the job's samples keep no keys; null: they do, or there are none
    bool whole; // the programs and their memory are made, though what is wrong may be an error
    int64_t rows, context;   // of FILL, as in compile_options but for 0; context of any: of a text
    struct memory memory;    // of the stage with the largest arena
    struct memory *by_stage; // compiled_memory()
    char hash[33];           // of all programs (plan_hash.h): the plan hash all ranks agree on
};

// Whether there is a program of the kind: train, eval when the job evaluates, fill and step, or sample,
// when it samples then; or what was asked for alone.
bool compiled_has(const struct compiled *c, enum program_kind k);
// A rank runs the programs of its stage, which is its coordinate on the pipeline's axis.
int compiled_stage(const struct compiled *c, int rank);
const struct program *compiled_program(const struct compiled *c, enum program_kind k, int stage);
const struct memory *compiled_memory(const struct compiled *c, int stage);

// How many instructions a step may have: all of them are in memory at once.
enum { COMPILE_MOST_INSTRS = 1 << 20 };

// How many tokens of a prompt the samples of a job take at once.
enum { COMPILE_CHUNK = 64 };

// What no job says: for measurements, to find a bug, and for callers that want errors alone.
struct compile_options {
    bool as_read;   // collectives stay where their results are read: no overlap (order.h)
    int64_t bucket; // bytes, in place of resources.bucket; 0: the job's
    bool uncached;  // a job's samples keep no keys: each token takes a forward pass
    bool unhashed;  // for callers that ask for memory alone: `hash` stays empty
    bool hasty;     // explain_job() looks for no warning whose fix takes trials
    // SAMPLE or SCORE: that program alone, of so many rows as data.batch says; FILL: it and STEP. TRAIN:
    // the job's.
    enum program_kind only;
    // Of FILL: how many tokens of a text it takes at once, and how many a text may have in all; 0: as the
    // model has of a sample. Both at most that.
    int64_t rows, context;
};

// Everything lies in `a`. ERR_INVALID: the job asks for something that cannot be; what is wrong with
// its sharding is in out->sharding->facts, which common/explain phrases. ERR_INTERNAL: a check
// failed; `dump`, if given, then holds the graph.
int compile_job(const struct job *job, build_fn build, const struct compile_options *o,
                struct arena *a, struct compiled *out, struct buf *dump, struct err *e);
