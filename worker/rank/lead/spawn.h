// SPDX-License-Identifier: Apache-2.0
// All ranks of a solo run here, as children of one small process that does nothing else: it starts
// them, passes SIGINT and SIGTERM on (a second one kills), keeps their bounded logs, shows their
// warnings and errors, reaps them, and ends with the code of the rank that failed first: the cause
// rather than a 69 if there is one. When one has failed the rest get a grace, then SIGKILL; when
// this process dies, they do (PR_SET_PDEATHSIG, set by the rank first thing).
#pragma once
#include "common/base/err.h"

enum { SPAWN_FLAGS_MAX = 512 };

// argv: of this program, to which "--rank R --parent PID" is added for each. dir: DIR.
// *code is the exit code to end with.
int spawn_run(char *const *argv, int argc, const char *dir, int ranks, int *code, struct err *e);
