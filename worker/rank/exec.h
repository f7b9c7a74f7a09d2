// SPDX-License-Identifier: Apache-2.0
// Execution: a compiled job loaded on one device. It allocates the planned arena (the private
// region from the backend, the shared one from the world's window), makes the communicators, binds
// every instruction to pointers once, and then runs programs without allocating or looking anything
// up. One thread.
//
// What the device has handed out is checked against the plan, to the byte.
#pragma once
#include "common/compile/compile.h"
#include "kernels/backend.h"
#include "worker/collective/collective.h"

struct exec;

struct exec_options {
    const struct compiled *compiled; // borrowed, as is all below
    const struct backend *backend;
    struct device *device;
    struct world *world; // may be null when no program has a collective
    int rank;
    struct progress_page *page; // may be null
    // May be null: told after each instruction of the train program, once the device is done with
    // it.
    void (*ran)(void *ctx, int instr);
    void *ctx;
};

int exec_open(const struct exec_options *o, struct exec **out, struct err *e);
void exec_close(struct exec *x); // null is fine

// The device memory taken, whoever took it, is what the plan said. Holds after the opening of all
// that a rank opens, and after training.
int exec_check_memory(const struct exec *x, struct err *e);

// Runs one program from start to end: a whole step. The metrics vector is then in its buffer, and
// everything is queued on the stream (exec_stream).
int exec_run(struct exec *x, enum program_kind kind, struct err *e);

// A buffer of a program by name ("layers/0/weight", "images", "hyper"), null when it has none.
const struct buffer *exec_buffer(const struct exec *x, enum program_kind kind, const char *name,
                                 void **device_pointer);
struct stream_q *exec_stream(struct exec *x);

// Host ↔ device through the stream; put returns when `from` may be changed, get when `to` is
// filled.
int exec_put(struct exec *x, void *device_to, const void *from, size_t bytes, struct err *e);
int exec_get(struct exec *x, void *to, const void *device_from, size_t bytes, struct err *e);
