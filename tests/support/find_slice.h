// SPDX-License-Identifier: Apache-2.0
// A slice of a shard file by its tensor's name; null when the file holds none.
#pragma once
#include <string.h>

#include "common/ckpt/shard_file.h"

static inline const struct shard_slice *find_slice(const struct shard_plan *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->slices[i].name, name))
            return &p->slices[i];
    return NULL;
}
