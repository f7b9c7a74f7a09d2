// SPDX-License-Identifier: Apache-2.0
// How the leader's files add to the list of its actions (leader_out.h). Inside common/attempt/ only.
#pragma once
#include "common/attempt/leader_out.h"

// The next action of the list.
struct leader_action *leader_act(struct leader_out *out, enum leader_action_kind kind);
// The frame of a new LEADER_SEND.
Weft__Rank__Frame *leader_send(struct leader_out *out, int rank, Weft__Rank__Frame__BodyCase kind);
