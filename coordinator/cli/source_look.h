// SPDX-License-Identifier: Apache-2.0
// Where a job begins (checkpoint.from), as far as this machine can see it. Inside coordinator/cli/ only.
#pragma once
#include "common/base/buf.h"
#include "common/compile/compile.h"
#include "common/job/job.h"

// Puts the folder of a job that `weft run` started beside the job file in the place of its name, and
// leaves a path as it is. ERR_NOTFOUND: nothing was started here by that name.
int source_name(struct job *job, struct arena *a, struct err *e);
// Holds the job's parameters against the checkpoint, and appends to `say` what is taken, from where.
// ERR_NOTFOUND: there is none at that path here. ERR_INVALID, ERR_DATA: it cannot be taken.
int source_look(const struct job *job, const struct compiled *c, struct arena *a, struct buf *say,
                struct err *e);
