// SPDX-License-Identifier: Apache-2.0
// Why a queued job would not be placed on the known hosts even if nothing else ran: which of the
// reasons it is, with its numbers. A reader. Inside coordinator/ only.
#pragma once
#include "common/base/arena.h"
#include "coordinator/decide/job_record.h"

char *shortage_explain(const struct job_record *j, struct arena *a);
