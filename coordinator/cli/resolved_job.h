// SPDX-License-Identifier: Apache-2.0
// The job of a command line: file and overrides, read, checked and compiled before anybody is
// asked, so that every mistake in it is told with the file's own lines and leaves nothing behind.
// Who takes the job (coordinator, ranks) compiles it again: it sees the resolved form, which has
// other lines.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/job/job.h"
#include "coordinator/cli/verbs.h"

// CLIENT_OK, and the resolved form at the end of `resolved`; else CLIENT_USAGE, all said.
int resolve_job(const struct args *a, struct arena *arena, struct job *job, struct buf *resolved);
