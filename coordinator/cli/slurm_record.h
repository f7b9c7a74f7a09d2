// SPDX-License-Identifier: Apache-2.0
// Where a run of Slurm's is found again by who asks for it in the folder of its job file:
//
//   .weft/NAME.slurm   0600, in a folder of this user's own
//     job 1234         Slurm's number of the newest
//     root /ckpt       its checkpoint.dir
//
// Inside coordinator/cli/ only.
#pragma once
#include "common/base/err.h"

enum { SLURM_ID = 24, SLURM_ROOT = 4096 };
struct slurm_record {
    char job[SLURM_ID], root[SLURM_ROOT];
};
// `root` may be relative to the folder `base`.
int slurm_record_write(const char *base, const char *name, const char *job, const char *root,
                       struct err *e);
// ERR_NOTFOUND: there is none. ERR_INVALID: its folder is not this user's own. ERR_DATA: it is no such file.
int slurm_record_read(const char *base, const char *name, struct slurm_record *out, struct err *e);
