// SPDX-License-Identifier: Apache-2.0
// Execution: a compiled job loaded on one device. It allocates the planned arena (the private
// region from the backend, the shared one from the world's window), makes the communicators, binds
// every instruction to pointers once, and then runs programs without allocating or looking anything
// up. One thread.
//
// On a device with memory of its own both regions are the device's and collectives are staged
// (staging.h); what lies between them is captured and replayed (segments.h); inputs come in and
// checkpoints go out on streams beside the computation's (lane.h); the device itself shows on the
// progress page where it is (marks.h), for the host is ahead of it.
//
// What the device has handed out is checked against the plan, to the byte.
#pragma once
#include "common/compile/compile.h"
#include "kernels/backend.h"
#include "worker/collective/transport.h"
#include "worker/rank/exec/lane.h"

struct exec;

struct exec_options {
    const struct compiled *compiled; // borrowed, as is all below
    const struct backend *backend;
    struct device *device;
    struct world *world;               // may be null when no program has a collective
    const struct transport *transport; // what carries them; null: host_transport
    struct library_memory *took;       // by `settle`; may be null
    int rank;
    struct progress_page *page; // may be null
    // May be null: called after each instruction of the train program, once the device is done with
    // it.
    void (*ran)(void *ctx, int instr);
    void *ctx;
};

int exec_open(const struct exec_options *o, struct exec **out, struct err *e);
void exec_close(struct exec *x); // null is fine

// Shows the backend every product that the programs will ask for, so that it settles how it
// computes them (backend.h: tune). Writes all over the device's memory, which is as new afterwards.
int exec_tune(struct exec *x, bool time, struct err *e);

// Makes the copies of the parameters that the programs read (compile/program/copies.h) from what the
// parameters are now: after they were drawn or restored, on the stream. Updates keep them.
int exec_copies(struct exec *x, struct err *e);

// Checks that the device memory that was taken, by whomever, is what the plan said. This must hold
// once the rank has opened everything, and after training.
int exec_check_memory(const struct exec *x, struct err *e);

// Runs one program from start to end: a whole step. The metrics vector is then in its buffer, and
// everything is queued on the stream (exec_stream).
int exec_run(struct exec *x, enum program_kind kind, struct err *e);
// Says whether a collective has failed. After a wait for the device this must hold before anything that
// it made is believed (exec_get looks by itself).
int exec_check(struct exec *x, struct err *e);
// What runs from here on belongs to this step. The progress page shows it once the device has come
// here.
int exec_step(struct exec *x, int64_t step, struct err *e);
// Brings the progress page up to where the device is, at once, for whoever is about to read it. By
// itself it follows a moment later.
void exec_show(struct exec *x);

// A buffer of a program by name ("layers/0/weight", "images", "hyper"), null when it has none.
const struct buffer *exec_buffer(const struct exec *x, enum program_kind kind, const char *name,
                                 void **device_pointer);
struct stream_q *exec_stream(struct exec *x);
// How long the computation has stood still for collectives so far, of all programs; −1: the device does
// not say, because they run in its own queue.
int64_t exec_communication_ns(const struct exec *x);

// Host ↔ device through the stream; put returns when `from` may be changed, get when `to` is
// filled.
int exec_put(struct exec *x, void *device_to, const void *from, size_t bytes, struct err *e);
int exec_get(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e);

// Inputs of the program's next run: what is copied to them between begin and end, on exec_inputs's
// stream, waits for their last readers, and the next run waits for it.
int exec_inputs_begin(struct exec *x, enum program_kind kind, struct err *e);
int exec_inputs_end(struct exec *x, struct err *e);
struct lane *exec_inputs(struct exec *x);
// A save of what outlives a step, as it is now: exec_save copies it, between begin and end. The
// copies run beside the next step, which waits for them before it changes anything that is saved.
// exec_saves says when the copies have come.
int exec_saves_begin(struct exec *x, struct err *e);
int exec_save(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e);
int exec_saves_end(struct exec *x, struct err *e);
struct lane *exec_saves(struct exec *x);
