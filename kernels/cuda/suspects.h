// SPDX-License-Identifier: Apache-2.0
// Configurations that cuBLASLt did not name and that may end the process: each is written down, in
// the folder of choices, before it is tried, and taken away behind it. One that is still there when
// a process begins left the device useless to the one before, or did not return until that was
// killed: it is not tried again. (So it is with one that was tried while another thing ended the
// process: of thousands of configurations that is one less.) Inside kernels/cuda/ only.
//
//   FOLDER/suspect-HASH    a line, "KEY = CHOICE", and one with whose it is (algos.h)
//
// HASH is of both lines. What is there stays until a person removes it.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"

struct suspects {
    const char *folder, *owner; // borrowed; no folder: nothing is known, nothing is kept
};

bool suspects_know(const struct suspects *s, const char *key, const char *choice);
int suspects_put(const struct suspects *s, const char *key, const char *choice, struct err *e);
void suspects_clear(const struct suspects *s, const char *key, const char *choice);
