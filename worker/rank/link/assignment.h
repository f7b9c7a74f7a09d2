// SPDX-License-Identifier: Apache-2.0
// What a rank gets when it starts: the content of the Assign frame, and what its own process
// adds about itself. A rank is one process that trains at one mesh coordinate for one attempt of a
// job; its states and exit codes are in common/attempt/life.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/life.h"
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/id.h"

struct job;
struct progress_page;

// Everything that train_run() needs to know. The strings lie in `arena`.
struct assignment {
    struct arena arena;
    // from Assign
    const char *base_dir; // what relative paths of the job start from, absolute
    const char *job_text; // the resolved job file
    struct job *job;      // parsed from it
    const char *job_hash; // job_hash() of it as text
    char job_id[ID_LEN], cluster_id[ID_LEN];
    char attempt_id[ID_LEN]; // random; the attempt's fence file holds it
    char run_id[ID_LEN];     // the same in every attempt of a job; manifests hold it
    uint64_t attempt;
    int rank, ranks;
    int threads;           // of the device; 0: as the job says
    int device;            // number among this host's devices of the job's kind
    unsigned char key[32]; // proves membership to TCP peers (world_options.key)
    const char *store;     // the job's checkpoint folder ("ckpt/NAME-<id8>"), absolute; it exists
    const char *restore;   // folder in `store` to load ("step-00000200.a3"); null: a fresh start
    int64_t restore_step;  // 0 for a fresh start
    int64_t hang_after_ns;
    const char *data_root, *checkpoint_root; // folders that hold all of the job's files; null: any
    const char *metrics; // path of metrics.jsonl; null unless this rank writes it (rank 0)
    int only;            // enum program_kind: it has this program alone and is asked; 0: it trains
    int64_t rows, context; // of FILL (compile_options)
    const char *listen; // TCP address for ranks of other hosts, port 0; null: all are on one host
    // of this process
    const char *host;           // ranks with the same text share memory
    const char *socket_dir;     // 0700, on this host, for ranks of this attempt only
    struct progress_page *page; // this rank's
};
