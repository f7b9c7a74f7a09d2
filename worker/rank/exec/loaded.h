// SPDX-License-Identifier: Apache-2.0
// Programs loaded on a device: what exec.c binds and run.c runs. Inside worker/rank/exec/ only.
#pragma once
#include "common/compile/program/group.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/exec/marks.h"
#include "worker/rank/exec/segments.h"

struct bound {
    const struct instr *instr;
    struct op_call call;           // OP
    struct op_attr attr;           // OP, when the coordinate changes it
    const struct op_call *calls;   // OP: this call and those of the next ops, run at once; or null
    struct collective *collective; // START, SEND, RECV and their WAIT
};

struct loaded {
    struct exec *exec;
    const struct program *program;
    struct bound *bound;
    int *begins;              // where its marks are (marks_plan); null without marks
    struct segments segments; // on a device with memory of its own
};

struct exec {
    struct exec_options o;
    struct arena arena;
    struct stream_q *stream;
    bool separate;       // the device's memory is not the host's
    struct marks *marks; // by which such a device says how far it is; null: there are none
    const struct transport *transport;
    struct fabric *fabric;             // null where no rank has a collective
    struct group group[COMMUNICATORS]; // by the fabric's number of its communicator
    int ngroups;
    struct lane inputs, saves;
    bool saving;              // a save is being copied, so what it holds may not change yet
    int last;                 // the program that ran last; −1: none
    int64_t communication_ns; // where collectives run on this thread: in them so far
    void *region[REGION_COUNT];
    struct loaded loaded[PROGRAM_KINDS];
};
