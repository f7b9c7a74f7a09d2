// SPDX-License-Identifier: Apache-2.0
// Paths that must stay beneath a root, whatever they say and whatever symbolic links do.
//
// A job that somebody else submitted names paths; a worker with roots opens none outside of its
// roots. A relative path starts at the root; an absolute one is taken only if its text begins with
// the root, and is then opened relative to it. The kernel follows and checks every part (openat2
// with RESOLVE_BENEATH), so there is no moment between check and use. Absolute links are refused
// even if they point inside, and so are links of /proc. Without openat2 in the kernel every call is
// ERR_UNSUPPORTED.
//
// A null or empty root stands for none: the calls are then what open(2) and mkdir(2) do.
// ERR_INVALID: the path leaves the root. ERR_NOTFOUND, ERR_IO: the system's answer, errno is kept.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/base/err.h"

// Makes an absolute path relative to the root ("." for the root itself); leaves any other as it is.
// ERR_INVALID: its own words leave the root, wherever its parts exist.
int root_relative(const char *root, const char *path, const char **out, struct err *e);
// O_CLOEXEC is always set.
int root_open(const char *root, const char *path, int flags, mode_t mode, int *fd, struct err *e);
// Makes one directory; *there: something of that name was there already, which is no error.
int root_mkdir(const char *root, const char *path, mode_t mode, bool *there, struct err *e);
// The path with its root in front ("/data/x"), for messages; the functions here take it too.
int root_join(const char *root, const char *path, char *out, size_t size, struct err *e);
