// SPDX-License-Identifier: Apache-2.0
// Marks: where a device that works through a queue is, told to the rank's progress page by the
// device itself.
//
// Marks are queued between a program's instructions, and captured with them (backend.h: mark). When
// the device comes to one it writes pinned words of the host's; a thread looks at them now and
// again, and what is new goes to the page: step, phase, microbatch, instructions. So it does
// whatever the rank's own thread waits for meanwhile. Nothing else beats the page there: a device
// that stands still leaves it still, and where it stopped.
//
// A mark lies at the beginning of each phase of each microbatch, and wherever the device has had
// about a millisecond of work since the last one, as the fastest device there is would take: a mark
// costs it some µs, and one that is a hundred times slower still tells several times a second.
//
// Made where the device queues, the backend has marks and the rank a page. The page's step, phase,
// microbatch and ops are then written here alone.
#pragma once
#include "common/attempt/page.h"
#include "common/compile/program/program.h"
#include "kernels/backend.h"

struct marks;

// Null in *out where there is nothing to do: no slot or no page.
int marks_open(const struct backend *b, struct device *d, struct progress_page *page,
               struct marks **out, struct err *e);
// Once the device is done: says the last. Null is fine, here and in marks_tell.
void marks_close(struct marks *m);

// Where a program's marks are: begins[i], of program->ninstrs, is how many instructions begin at a
// mark before instruction i, 0 where there is none. None lies within a row that runs in one call.
void marks_plan(const struct program *p, int *begins);

// Queue a mark on the computation's stream: a step begins; so do an instruction and those behind
// it.
int marks_step(struct marks *m, struct stream_q *q, int64_t step, struct err *e);
int marks_put(struct marks *m, struct stream_q *q, const struct instr *at, int begins,
              struct err *e);

// What the device has written up to now goes to the page. Any thread.
void marks_tell(struct marks *m);
