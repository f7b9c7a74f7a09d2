// SPDX-License-Identifier: Apache-2.0
// A job file as a cluster's scheduler takes it, from the flags of `weft render` and `weft sbatch`, for both.
// What would not fit is refused here, before it waits in a queue. Inside coordinator/cli/ only.
#pragma once
#include "coordinator/cli/render/cluster_facts.h"
#include "coordinator/cli/verbs.h"

struct rendered {
    struct render_options options;
    struct job job;
    struct render_facts facts; // of both
    struct buf text;           // the file, for the caller to clear
};
// Returns an exit code; what is wrong has been printed. All but the text lies in the arena.
// `program`: the path of weft where it runs; null: it is in PATH there.
int render_job(const struct verb *v, const struct args *a, enum render_kind kind,
               const char *program, struct arena *arena, struct rendered *out);
