// SPDX-License-Identifier: Apache-2.0
// The files that a path of a job names. That is one file, or, where the last part of the path is a
// pattern ("data/train-*.bin": * ? [abc] as in fnmatch(3)), all files whose names match, in byte
// order of the names. A file whose name is the pattern itself is that one file.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"

// Paths beneath `root` (base/root.h; null: no root), made in the arena. ERR_NOTFOUND: none
// matches; ERR_INVALID: a pattern in a folder's name.
int pattern_files(const char *root, const char *path, struct arena *a, const char ***files, int *n,
                  struct err *e);
