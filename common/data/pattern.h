// SPDX-License-Identifier: Apache-2.0
// The files that a path of a job names: one, or those whose names match the pattern that the
// path's last part is ("data/train-*.bin": * ? [abc], as fnmatch(3) has them), in the order of
// their bytes. A file that is called like the pattern itself is taken as it is.
#pragma once
#include <stdbool.h>

#include "common/base/arena.h"
#include "common/base/err.h"

// Whether it has a character that patterns have.
bool pattern_is_one(const char *path);
// Paths beneath `root` (base/root.h; null: no root), made in the arena. ERR_NOTFOUND: none
// matches; ERR_INVALID: a pattern in a folder's name.
int pattern_files(const char *root, const char *path, struct arena *a, const char ***files, int *n,
                  struct err *e);
