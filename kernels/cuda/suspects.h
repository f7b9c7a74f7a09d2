// SPDX-License-Identifier: Apache-2.0
// Configurations that cuBLASLt did not name and that may end the process: each is written down, in
// the folder of choices, before it is tried, and taken away behind it. Who tries one holds its file
// locked, so that several processes may share the folder. A file that nobody has locked was left by
// a process that the configuration made useless, or that was killed before it returned: it is not
// tried again. (So it is with one that was tried while another thing ended the process: of thousands
// of configurations that is one less.) Inside kernels/cuda/ only.
//
//   FOLDER/suspect-HASH    a line, "KEY = CHOICE", and one with whose it is (algos.h)
//
// HASH is of both lines. What is there stays until a person removes it. Where it cannot be written
// that is warned of once, and configurations are tried all the same.
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct suspects {
    const char *folder, *owner; // borrowed; no folder: nothing is known, nothing is kept
    FILE *trial;                // of the one under trial, locked; null: none, or it is not written
    char path[PATH_MAX];        // of that
    bool warned;
};

// Begins a trial. False: an earlier process did not survive it, so it is not to be tried.
bool suspects_begin(struct suspects *s, const char *key, const char *choice);
void suspects_end(struct suspects *s);   // it is over, and the process as well as before
void suspects_close(struct suspects *s); // leaves what is written
