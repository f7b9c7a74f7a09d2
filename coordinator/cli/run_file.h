// SPDX-License-Identifier: Apache-2.0
// What a run leaves beside its checkpoints or its job file: ROOT/.weft/NAME.KIND. Neither the folder nor
// the file may be a link. `own`: the folder must be this user's alone.
// Inside coordinator/cli/ only.
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"

// Durable: what takes an older file's place must not be empty after a power loss.
int run_file_write(const char *root, const char *name, const char *kind, bool own,
                   const void *bytes, size_t len, struct err *e);
// Appends a file of at most `most` bytes. ERR_NOTFOUND: there is none.
int run_file_read(const char *root, const char *name, const char *kind, size_t most,
                  struct buf *out, struct err *e);
