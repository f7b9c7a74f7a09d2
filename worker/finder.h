// SPDX-License-Identifier: Apache-2.0
// The job folders of one cluster beneath a checkpoint root: what a coordinator that lost its
// database asks for. Inside worker/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "proto/weft.pb-c.h"

// Fills found of `out`; its memory is the arena's. Folders that cannot be read are left out.
int finder_list(const char *root, const char *cluster, struct arena *a, Weft__V1__StorageDone *out,
                struct err *e);
