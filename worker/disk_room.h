// SPDX-License-Identifier: Apache-2.0
// How much room there is in the file systems of the worker's own folder and of its checkpoint root,
// looked at now and then on a thread of its own, since storage may hang. Inside worker/ only.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"
#include "worker/agent/agent.h"

struct disk_room;
// `checkpoints` may be null.
int disk_room_open(const char *state, const char *checkpoints, struct disk_room **out,
                   struct err *e);
// What was seen last, if that is news since the last call.
bool disk_room_take(struct disk_room *r, struct agent_room *out);
// A thread that hangs is left to itself, with its memory. Null is fine.
void disk_room_close(struct disk_room *r);
