// SPDX-License-Identifier: Apache-2.0
// A checkpoint's model on ranks of this process's own, which it asks (proto/rank.proto: Ask): for
// `weft generate` and `weft eval`. There is no coordinator and no worker: nobody else needs to know of
// ranks that train nothing, save nothing, and end with the process that asks them.
//
//   open: the job from the checkpoint's manifest, with a mesh of its own; a folder for pages, sockets
//         and logs; the ranks, which restore the parameters and agree on their plan
//   ask ⇄ answer, as often as wanted
//   close: the ranks end, the folder goes
//
// SIGINT, SIGTERM and SIGHUP end whatever waits, with ERR_ABORTED. One thread, which the ranks do not
// outlive. Inside coordinator/cli/ only.
#pragma once
#include "common/base/buf.h"
#include "common/ckpt/load.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"
#include "coordinator/cli/verbs.h"
#include "worker/local_leader.h"

struct local_ranks {
    struct arena arena;
    struct load load;    // of the checkpoint: open while this is
    const char *store;   // the folder that it is in
    bool tokenizer_gone; // of the job: it is a file, and none is beside the checkpoint
    struct job job;      // its job, with the mesh and batch that were asked for
    char folder[200]; // "": none yet. What a killed process left of its own goes at the next start
    int lock;         // of the folder; 0: none
    char rank[4096];  // path of weft-rank
    struct local_leader lead;
    bool led;
    int signals; // −1: not read
    int log;     // of the leader, in the folder; 0: none
    int alive;
    Weft__Rank__Assign assign;
    const char *resolved;
    struct buf answers; // to the last question, as far as they came
    int nanswers;
    Weft__Rank__Answer *answer; // these as one; null: none yet
    bool killed;                // a rank was, by SIGKILL
    struct err why;             // why a rank has ended; code 0: none has
};

struct local_options {
    const char
        *checkpoint;  // as of checkpoint.from (ckpt/source.h), or the name of a `weft run` here
    const char *mesh; // "dp=2,tp=2" or YAML; null: one device
    int64_t rows; // of the program, and as many more as the mesh divides; 0: a device's share of
                  // the training's microbatch for each device
    const char *const *set; // further settings, as -s has them
    int nset;
    enum program_kind only;
};

// The settings of a job whose model is asked, not trained: on a mesh of its own, `rows` of its program
// or as many more as that divides, and without what the training's mesh, batch and devices asked for.
// Appends them, and the options', to `set`, which has LOCAL_SETTINGS_MAX; *n is how many they are.
enum { LOCAL_SETTINGS_MAX = ARGS_MAX_SET + 16 };
int local_ranks_settings(struct arena *a, const struct local_options *o, int64_t rows,
                         const char **set, int *n, struct err *e);
// Opens the checkpoint and reads its job: what is wrong with both is found before any rank starts.
int local_ranks_open(struct local_ranks *l, const struct local_options *o, struct err *e);
// Of SAMPLE: lets the ranks keep the keys of texts, of up to `tokens` of one in a call, and `context` of
// it in all. ERR_UNSUPPORTED: this model, or mesh, has none, and they stay without. *gathered: so many
// weights come from other devices for each token.
int local_ranks_keep_keys(struct local_ranks *l, int64_t tokens, int64_t context, int *gathered,
                          struct err *e);
// Starts the ranks and waits until all are ready.
int local_ranks_start(struct local_ranks *l, struct err *e);
// Sends a question to every rank and waits for the answer, which is valid until the next one.
int local_ranks_ask(struct local_ranks *l, const Weft__Rank__Ask *ask,
                    const Weft__Rank__Answer **answer, struct err *e);
// Waits until `fd` has one of poll's events. ERR_ABORTED, ERR_PEER: meanwhile that happened.
int local_ranks_wait(struct local_ranks *l, int fd, short events, struct err *e);
// Whether a tokenizer is the training's, as far as that is known.
int local_ranks_check_tokenizer(const struct local_ranks *l, const char *name, const char *identity,
                                struct err *e);
void local_ranks_close(struct local_ranks *l); // a zeroed one is fine
