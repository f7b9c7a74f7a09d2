// SPDX-License-Identifier: Apache-2.0
// Small acts in one directory from which the store's durable ones are made (store.h). A failed
// fsync is final: ERR_IO, and the same file is never synced again.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

int durable_fsync(int fd, const char *what, struct err *e);
// Calls `each` with every name in the directory until one returns non-zero.
int durable_list(int dirfd, int (*each)(void *arg, const char *name, struct err *e), void *arg,
                 struct err *e);
// A new file, synced; its name is durable once the directory is synced too. ERR_EXISTS.
int durable_write_file(int dirfd, const char *name, const void *data, size_t len, struct err *e);
// Removes a folder with all that is in it, or a file; follows no links. Absent is fine.
int durable_remove_tree(int dirfd, const char *name, struct err *e);
// ERR_EXISTS when `to` is there; it is never replaced.
int durable_rename_new(int dirfd, const char *from, const char *to, struct err *e);
