// SPDX-License-Identifier: Apache-2.0
// What a communicator of NCCL took on this host, of a model of device: a run measures it, and keeps it in
// the user's cache ($XDG_CACHE_HOME/weft/nccl-memory), one number, the newest. The next plan counts with
// it; a run is not refused by it, and measures again.
#pragma once
#include <stdint.h>

#include "common/base/err.h"

// `model`: as the device calls itself, "NVIDIA H200". What is far too much is not kept.
// ERR_NOTFOUND: this user has no home, hence no cache.
int nccl_memory_keep(const char *model, uint64_t bytes, struct err *e);
// The newest number, and of which model; false: there is none, or none that can be.
enum { NCCL_MODEL = 64 };
bool nccl_memory_find(char model[NCCL_MODEL], uint64_t *bytes);
