// SPDX-License-Identifier: Apache-2.0
// Where a run in an allocation is found again by who asks for it in the folder of its job file:
//
//   .weft/NAME.place   0600, in a folder of this user's own
//     root /ckpt       its checkpoint.dir
//     job 1234         Slurm's number of the newest; only of a run in Slurm
//
// Inside coordinator/cli/ only.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

enum { RUN_PLACE_JOB = 24, RUN_PLACE_ROOT = 4096 };
struct run_place {
    char job[RUN_PLACE_JOB], root[RUN_PLACE_ROOT]; // job "": it is none of Slurm's
};
// `job` "": there is none; `root` may be relative to the folder `base`.
int run_place_write(const char *base, const char *name, const char *job, const char *root,
                    struct err *e);
// ERR_NOTFOUND: there is none. ERR_INVALID: its folder is not this user's own. ERR_DATA: it is no such file.
int run_place_read(const char *base, const char *name, struct run_place *out, struct err *e);
// The same of its text, behind which is a zero byte, for tests. ERR_DATA.
int run_place_parse(const char *text, size_t len, struct run_place *out, struct err *e);
