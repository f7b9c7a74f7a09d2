// SPDX-License-Identifier: Apache-2.0
// One process that reads and plans jobs, one at a time, for the coordinator that started it:
//
//   descriptor 0   a socket: the length of a message comes, that of the answer goes
//   descriptor 1   a memory file with the message (JobText, JobFacts), so that no write ever blocks
//
// It keeps to its share of memory and dies with the coordinator. Inside coordinator/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "proto/planner.pb-c.h"

struct planner_process {
    pid_t pid; // 0: none lives
    int socket, memory_file;
    int64_t memory;
};

int planner_process_start(struct planner_process *p, const char *program, int64_t memory,
                          struct err *e);
int planner_process_give(struct planner_process *p, const Weft__Plan__JobText *text, struct err *e);
// The facts of the job at hand, the heap's; null: it is not decided yet. If the process has died, they
// say that it is refused, and pid is 0.
Weft__Plan__JobFacts *planner_process_hear(struct planner_process *p);
Weft__Plan__JobFacts *planner_process_refuse(const char *why); // facts of a job that is refused
void planner_process_kill(struct planner_process *p);

// What the process runs; returns an exit code.
int planner_process_main(int64_t memory);
