// SPDX-License-Identifier: Apache-2.0
// Remembers which configurations that cuBLASLt did not name have ended a process. Before one is
// tried it is written to a file in the folder of choices, and the file is removed after the trial.
// Whoever tries it holds the file locked, so several processes may share the folder. A file that
// nobody has locked was left by a process that ended in the trial, so its configuration is not
// tried again. (If something else ended the process, a good configuration is lost: one of
// thousands.) Inside kernels/cuda/ only.
//
//   FOLDER/suspect-HASH    two lines: "KEY = CHOICE", and the owner (algos.h)
//
// HASH is the digest of both lines. Such a file stays until a person removes it. Where files cannot
// be written there is one warning, and configurations are tried all the same.
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct suspects {
    const char *folder, *owner; // borrowed; folder null: nothing is remembered
    FILE *trial;                // the trial's file, locked; null: no trial, or no file of it
    char path[PATH_MAX];        // of that file
    bool warned;
};

// Begins a trial. False: an earlier process did not survive it, so it is not to be tried.
bool suspects_begin(struct suspects *s, const char *key, const char *choice);
void suspects_end(struct suspects *s);   // the process survived the trial: removes its file
void suspects_close(struct suspects *s); // closes the trial's file, which stays in the folder
