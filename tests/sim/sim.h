// SPDX-License-Identifier: Apache-2.0
// The simulator's engine: virtual time, randomness, the trace, and fibers that run blocking code.
//
// Everything that happens is an event in one heap, ordered by (time, number): the same seed gives
// the same run. Randomness is Philox over (seed, draw). A fiber is a thread of a simulated process:
// it runs the product's own blocking code (the checkpoint store) and yields virtual time at every
// system call that changes or syncs something (disk.c). A fiber whose process has died is resumed
// once more; all its calls then fail without effect, so it unwinds and frees what it holds.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/clock.h"

#define MS CLOCK_MS
#define S  CLOCK_S

struct sim_event;
struct sim {
    uint64_t seed, draws;
    uint32_t words[4]; // of the block at hand
    int64_t now, wall0_ms;
    struct sim_event *heap;
    int n, cap;
    uint64_t numbered, handled;
    struct arena arena; // of the whole schedule
    bool tracing, failed;
    char why[600]; // the first violation
};
typedef void sim_fn(void *arg, uint64_t tag);

void sim_init(struct sim *s, uint64_t seed, bool tracing);
void sim_clear(struct sim *s);
// Calls fn(arg, tag) in `delay` ns. A tag that is no longer the receiver's is its way to cancel.
void sim_after(struct sim *s, int64_t delay, sim_fn *fn, void *arg, uint64_t tag);
bool sim_next(struct sim *s); // handles one event; false: none left

uint32_t sim_word(struct sim *s);
int sim_below(struct sim *s, int n);                        // [0, n)
int64_t sim_between(struct sim *s, int64_t lo, int64_t hi); // [lo, hi]
bool sim_chance(struct sim *s, int per_mille);
void sim_hex(struct sim *s, char out[33]); // an id

// The trace, a line each in columns: when, who, what; of a message to whom, what and why.
void sim_say(struct sim *s, const char *who, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sim_say_message(struct sim *s, const char *from, const char *to, const char *what,
                     const char *why);
// An invariant is broken: the first one ends the schedule.
void sim_fail(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define TRACE(s, ...) ((s)->tracing ? sim_say((s), __VA_ARGS__) : (void)0)

// ---- processes and their fibers ----
struct fiber;
struct proc_note;
struct proc { // a simulated process; one struct a life: it never lives again
    struct sim *sim;
    char who[48];
    bool dead, stopped;
    struct fiber *fibers;                 // that run
    struct proc_note *backlog, *backlast; // what came while it was stopped, in order
};
void proc_init(struct proc *p, struct sim *s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// Calls fn(arg, tag) in `delay` ns in the process: not once it is dead, later while it is stopped.
void proc_after(struct proc *p, int64_t delay, sim_fn *fn, void *arg, uint64_t tag);
void proc_die(struct proc *p); // its fibers unwind at once
void proc_stop(struct proc *p);
void proc_wake(struct proc *p);

// What the fiber does: mutations of disk acts, and readers of a trace, ask.
enum fiber_act { ACT_NONE, ACT_SHARD, ACT_COMMIT, ACT_REMOVE, ACT_DELETE, ACT_FENCE, ACT_PROBE };

// Runs body(arg) on a fiber of `p`, then done(arg) (not when the process died meanwhile).
void fiber_start(struct proc *p, enum fiber_act act, void (*body)(void *), void (*done)(void *),
                 void *arg);
struct proc *fiber_proc(void); // of the running fiber; null: none runs
enum fiber_act fiber_doing(void);
bool fiber_pause(int64_t ns); // inside one; false: the process is dead
void fiber_free_all(void);    // stacks
