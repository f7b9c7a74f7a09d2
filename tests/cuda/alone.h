// SPDX-License-Identifier: Apache-2.0
// For tests of the emulator and the fake runtime: LAUNCH takes a bare stream, and kernels that have
// no kernel_begin().
#pragma once
#include "kernels/cuda/launch.h"

#undef LAUNCH
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    EMULATE_LAUNCH(kernel, grid, block, shared_bytes, stream, EMULATE_ALONE, __VA_ARGS__)
