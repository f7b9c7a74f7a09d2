// SPDX-License-Identifier: Apache-2.0
// The coordinator of a `weft run`, for verbs that name the folder of its state, .weft/NAME, as
// --coordinator: that of the run, or, where none is under way, one that is started for as long as the
// verb asks. It has no worker, so nothing runs meanwhile. Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

struct own_run; // holds the folder's lock and the coordinator, where it was started

bool own_run_is_folder(const char *address); // whether it is a path, not an address
// `address` gets the coordinator's. *out is null where it belongs to a run that is under way.
int own_run_open(const char *folder, struct own_run **out, char *address, size_t size,
                 struct err *e);
void own_run_close(struct own_run *r); // null is fine
