// SPDX-License-Identifier: Apache-2.0
// Which of several processes this `weft run` is, as whoever started it says in the environment:
//
//   Slurm       a step of srun: SLURM_STEP_ID, SLURM_JOB_ID, SLURM_PROCID (index), SLURM_NTASKS (size),
//               SLURM_LOCALID, SLURM_STEP_NODELIST, SLURM_RESTART_COUNT, SLURM_JOB_END_TIME
//   Kubernetes  a pod of an Indexed Job: JOB_COMPLETION_INDEX (index); the size is WORLD_SIZE
//   Kubeflow    PET_NODE_RANK (index), PET_NNODES (size), PET_MASTER_ADDR, PET_MASTER_PORT
//   others      RANK (index), WORLD_SIZE (size), MASTER_ADDR, MASTER_PORT
//   weft up     no variable: what it is comes over its standard input (up_order.h)
//
// Index 0 leads, the others are its agents. One process a host: an agent offers all devices of its host.
// Slurm and Kubernetes at once are refused; the variables of the others must agree with theirs, and
// with each other. torchrun and mpirun are refused: they end with 1 whatever a process ends with, so
// that 75 (start me again) is lost. Pure: it reads through the function that it is given.
// Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { ALLOCATION_MAX = 65536 }; // processes
enum allocation_kind {
    ALLOCATION_NONE,
    ALLOCATION_SLURM,
    ALLOCATION_KUBERNETES,
    ALLOCATION_OTHER,
    ALLOCATION_UP
};

struct allocation {
    enum allocation_kind kind; // NONE: this process is alone
    int index, size;
    char host[256];  // of the leader, for the agents; "": nobody says
    int port;        // 0: the leader takes any
    char id[128];    // of this start of the whole, the same in all of it; "": nobody says
    int64_t end_s;   // when it is taken away, seconds since 1970; 0: nobody says
    char text[700];  // what was found and in which variables, for people
    char doubt[300]; // what looks like a mistake and is none; ""
};

typedef const char *allocation_get(void *ctx, const char *name); // null: it is not set
// ERR_INVALID: what is set contradicts itself, or starts several processes a host; the message names
// the variables and what to do.
int allocation_read(allocation_get *get, void *ctx, struct allocation *out, struct err *e);
// The same of this process's environment.
int allocation_find(struct allocation *out, struct err *e);
// Whether a process that ends is started again while the others run.
bool allocation_replaces(const struct allocation *a);
// How many hosts a list of Slurm's names ("n[01-03,7],gpu1"): −1 where it is none.
int allocation_count_hosts(const char *list);
