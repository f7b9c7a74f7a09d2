// SPDX-License-Identifier: Apache-2.0
// A model as its resolved job describes it, for files that hold its parameters alone: sizes, parameters,
// and the program whose section `export hf` names them.
// Inside common/weights/ only.
#pragma once
#include "common/job/job.h"
#include "common/weights/mapping.h"

struct described {
    struct job job;
    struct model_sizes
        sizes; // sizes.program has the section, where any text of this program has it
    struct weight_params params;
};

// From a resolved job's text. `with`: null, or a program whose section is to be used: a name of weft's
// or a path; it must be the same program but for that section. Everything lies in `a`.
int described_read(struct described *d, struct arena *a, const char *resolved, const char *with,
                   struct err *e);
// From a job that was read.
int described_build(struct described *d, struct arena *a, struct err *e);
// Reads a program that comes with weft, or a file.
int described_program(const char *name, struct arena *a, const struct model_program **out,
                      struct err *e);
