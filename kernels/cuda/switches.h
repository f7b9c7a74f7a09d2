// SPDX-License-Identifier: Apache-2.0
// Environment variables WEFT_CUDA_NAME by which a person changes a device's choices, to find out by
// trial what is fastest. They are read once, when the device is opened. Inside kernels/cuda/ only.
//
//   LIBRARY_ATTENTION  0: our own kernels serve every call of attention
//   EPILOGUES          0: what follows a product is a kernel of its own
//   CANDIDATES         how many algorithms cuBLASLt is asked for, for each product
//   FINALISTS          how many of these are timed with care
//   SCRATCH            MiB of the planned scratch that a product's algorithm may use at most
//   ATTENTION_SCRATCH  the same for an engine of attention
//   EARLY_LAUNCH       1: our kernels are launched before those ahead of them have ended
//
// A trained number may depend on them, so they are part of the owner of choices (algos.h): choices
// that were made under other switches are not used. EARLY_LAUNCH is not: it changes no number, and
// runs with and without it are compared to the bit, with the same choices.
#pragma once
#include "common/base/err.h"

enum cuda_switch {
    SWITCH_LIBRARY_ATTENTION,
    SWITCH_EPILOGUES,
    SWITCH_CANDIDATES,
    SWITCH_FINALISTS,
    SWITCH_SCRATCH,
    SWITCH_ATTENTION_SCRATCH,
    SWITCH_EARLY_LAUNCH,
    SWITCH_COUNT
};
enum { SWITCH_CANDIDATES_MOST = 32, SWITCHES_SIZE = 192 }; // size: of the text of them all, at most

// Fails if a variable is not a number in its range.
int switches_read(int value[SWITCH_COUNT], struct err *e);
// Prints ", WEFT_CUDA_NAME=N" for each that has not its usual value and may change a number.
void switches_print(const int value[SWITCH_COUNT], char to[SWITCHES_SIZE]);
