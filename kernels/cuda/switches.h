// SPDX-License-Identifier: Apache-2.0
// Environment variables WEFT_CUDA_NAME by which a person changes a device's choices, to find out by
// trial what is fastest. They are read once, when the device is opened. Inside kernels/cuda/ only.
//
//   LIBRARY_ATTENTION  0: our own kernels serve every call of attention
//   EPILOGUES          0: what follows a product is a kernel of its own
//   CANDIDATES         algorithms that cuBLASLt is asked for, for each product
//   FINALISTS          of them those that are timed with care
//   ENUMERATE          ms a product in which other configurations than those named are timed; 0: none
//   ENUMERATE_ALL      ms of a device's products together in which they are
//   SCRATCH            MiB, of what was planned, that an algorithm of a product may have at most
//   ATTENTION_SCRATCH  the same of an engine of attention
//   EARLY_LAUNCH       1: our kernels come to the device before those ahead of them have ended
//
// A trained number may depend on them, so they are part of the owner of choices (algos.h): what was
// chosen under others is another device's. Not so EARLY_LAUNCH: it changes no number, and runs with
// and without it are to be compared to the bit, with the same choices.
#pragma once
#include "common/base/err.h"

enum cuda_switch {
    SWITCH_LIBRARY_ATTENTION,
    SWITCH_EPILOGUES,
    SWITCH_CANDIDATES,
    SWITCH_FINALISTS,
    SWITCH_ENUMERATE,
    SWITCH_ENUMERATE_ALL,
    SWITCH_SCRATCH,
    SWITCH_ATTENTION_SCRATCH,
    SWITCH_EARLY_LAUNCH,
    SWITCH_COUNT
};
enum { SWITCH_CANDIDATES_MOST = 32, SWITCHES_SIZE = 272 }; // the text of them all has room in it

// Fails where a variable is no number of its range.
int switches_read(int value[SWITCH_COUNT], struct err *e);
// ", WEFT_CUDA_NAME=N" of each that is not as usual and may change a number.
void switches_print(const int value[SWITCH_COUNT], char to[SWITCHES_SIZE]);
