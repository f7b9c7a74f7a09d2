// SPDX-License-Identifier: Apache-2.0
// Collectives between CUDA devices by NCCL: slots of backend.h. Null in a build without NCCL's header
// (the Makefile looks for it). Inside kernels/cuda/ only.
#pragma once
#include "kernels/backend.h"

#ifdef WEFT_NCCL
extern const struct backend_collectives cuda_collectives;
#define CUDA_COLLECTIVES &cuda_collectives
#else
#define CUDA_COLLECTIVES NULL
#endif
