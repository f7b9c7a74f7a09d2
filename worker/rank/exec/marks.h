// SPDX-License-Identifier: Apache-2.0
// Marks show how far a device has come that works through a queue. Inside worker/rank/exec/ only.
//
// They are queued between a program's instructions, and captured with them (backend.h: mark). When
// the device reaches a mark it writes words in pinned memory of the host. A thread reads these
// words now and again and writes what is new to the rank's progress page: step, phase, microbatch,
// instructions. That continues whatever the rank's own thread waits for. Nothing else writes the page
// while a device computes, so a device that stands still leaves the page still, at the place where
// it stopped.
//
// There is a mark at the beginning of each phase of each microbatch, and wherever about five
// milliseconds of work, as the fastest device would take, or 128 collectives have been queued since
// the last one. A mark costs the device some µs, in which nothing else runs; a device that is a
// hundred times slower still reaches two a second.
//
// Marks exist where the device queues, the backend has marks and the rank has a page. Then the
// page's step, phase, microbatch and ops are written here alone.
#pragma once
#include "common/attempt/page.h"
#include "common/compile/program/program.h"
#include "kernels/backend.h"

struct marks;

// Null in *out where there is nothing to do: no slot or no page.
int marks_open(const struct backend *b, struct device *d, struct progress_page *page,
               struct marks **out, struct err *e);
// Once the device is done: writes the last to the page. Null is fine, here and in marks_show.
void marks_close(struct marks *m);

// Says where a program's marks are: begins[i] (there are program->ninstrs) is how many instructions
// begin at a mark before instruction i, 0 where there is no mark. No mark lies between instructions
// that the backend runs by one call.
void marks_plan(const struct program *p, int *begins);

// Queue a mark on the stream of the computation: that a step begins; that an instruction and those
// behind it begin.
int marks_step(struct marks *m, struct stream_q *q, int64_t step, struct err *e);
int marks_put(struct marks *m, struct stream_q *q, const struct instr *at, int begins,
              struct err *e);

// Writes to the page what the device has written up to now. Any thread.
void marks_show(struct marks *m);
