// SPDX-License-Identifier: Apache-2.0
// A protobuf message as JSON, by its descriptor: the members in the message's order under its names.
// null is an absent message, an empty text, an enum's 0, a negative int32 or int64, and a number that
// is not known (proto/weft.proto says by which other member). Inside coordinator/cli/ only.
#pragma once
#include "coordinator/cli/cli_print.h"

// Writes the members into the open object.
void json_members(struct json_out *w, const ProtobufCMessage *m);
// The whole as one object and a newline.
void json_message(struct buf *out, bool pretty, const ProtobufCMessage *m);
