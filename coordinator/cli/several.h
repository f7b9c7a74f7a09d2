// SPDX-License-Identifier: Apache-2.0
// What the leader and the agents of one `weft run` over several hosts have in common: who they are
// (allocation.h), where they meet (leader_file.h), and where each keeps what is its node's own.
//
//   TMPDIR/weft-UID/NAME-XXXXXXXX-INDEX   0700, empty at each start: database, logs, certificates. What must
//                                         outlive it lies in the job's checkpoint folder
//
// Exit codes are a scheduler's: 75 start me again, 78 a person must look; 0, 1 and 130 as ever.
// Inside coordinator/cli/ only.
#pragma once
#include "common/job/job.h"
#include "coordinator/cli/allocation.h"
#include "coordinator/cli/leader_file.h"

enum { SEVERAL_AGAIN = 75, SEVERAL_PERSON = 78, SEVERAL_LOOK_S = 2 };
struct several {
    struct allocation a;          // kind NONE: this `weft run` is alone, and all else is empty
    struct leader_secret secret;  // several_open reads it where it is not set already
    char name[64];                // of the job
    char root[4096], place[4096]; // its checkpoint.dir, made; what is this node's own
    int devices;                  // that each host offers, of CPUs
    int64_t wait_ns;              // how long they wait for each other: WEFT_WAIT, else 5 min
};
// `base`: of the job file. ERR_EXISTS: another process has this place.
int several_open(struct several *s, const struct job *job, const char *base, struct err *e);
// Whether the leader of this file listens: who answers at one of its addresses with its authority. True too
// where the descriptor `stop` is readable before that is known.
bool several_leader_answers(const struct several *s, const struct leader_file *f, int stop);
// What an exit code of `weft run` is to a scheduler. `signal`: that stopped it, 0: none did.
int several_exit(int code, int signal);
