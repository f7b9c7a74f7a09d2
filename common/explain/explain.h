// SPDX-License-Identifier: Apache-2.0
// Compiles a job and says what there is to say of it. The compiler finds facts; here they become
// findings, together with what only the whole plan shows: axes that cut nothing, repeated work,
// stages that wait.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/findings.h"

// compile_job(), then the findings, which lie in `a` as well. ERR_INVALID: the job asks for
// something that cannot be, or there is an error among the findings; the message says what would
// do.
int explain_job(const struct job *job, build_fn build, const struct compile_options *o,
                struct arena *a, struct compiled *out, struct findings *found, struct buf *dump,
                struct err *e);
