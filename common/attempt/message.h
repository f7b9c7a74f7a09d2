// SPDX-License-Identifier: Apache-2.0
// Whole copies of protobuf messages.
#pragma once
#include "common/base/arena.h"
#include "proto/rank.pb-c.h"

void *message_copy(const ProtobufCMessage *m);                 // the heap's
void *message_dup(struct arena *a, const ProtobufCMessage *m); // the arena's
