// SPDX-License-Identifier: Apache-2.0
// One process that plans jobs, one at a time, for the coordinator that started it:
//
//   descriptor 0   a socket: {lengths} of a job come, {code, text} of what is wrong with it goes
//   descriptor 1   a memory file with the job's folder and its text, so that no write ever blocks
//
// It keeps to its share of memory and dies with the coordinator. Inside coordinator/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "proto/weft.pb-c.h"

struct planner_process {
    pid_t pid; // 0: none lives
    int socket, job;
    int64_t memory;
};

int planner_process_start(struct planner_process *p, const char *program, int64_t memory,
                          struct err *e);
int planner_process_give(struct planner_process *p, const Weft__V1__SubmitRequest *job,
                         struct err *e);
// True when the job at hand is decided: *refused gets what is wrong with it, or code 0. If the
// process has died, the job is decided too, and pid is 0.
bool planner_process_hear(struct planner_process *p, struct err *refused);
void planner_process_kill(struct planner_process *p);

// What the process runs; returns an exit code.
int planner_process_main(int64_t memory);
