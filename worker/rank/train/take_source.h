// SPDX-License-Identifier: Apache-2.0
// Where a training without checkpoints of its own begins: the parameters of checkpoint.from.
// Inside worker/rank/train/ only.
#pragma once
#include "worker/rank/train/trainer.h"

// Over the state that was drawn, takes what the job wants of the checkpoint that its folder has pinned
// (common/ckpt/source.h), and notes for people what that was.
int take_source(struct trainer *t, struct err *e);
