// SPDX-License-Identifier: Apache-2.0
// The partitioner: from a graph on global values to one in which every value has a spec and every
// movement of data between devices is a collective node. The rules are those of the op table and
// of the job's sharding section; nothing here knows a model.
#pragma once
#include "common/compile/shard/sharding.h"

int partition(const struct graph *g, const struct mesh *m, const struct sharding *s,
              struct graph *out, struct err *e);
