// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a solo run goes on from, and what becomes of a run that has lost one: a finished
// one is refused, and so is a changed one that has none left; another goes on from what is left and
// says which steps are trained again (common/ckpt/README.md). Rank 0 calls in this order, all with
// DIR taken:
//
//   solo_restore_check → the folder is made and fenced → solo_restore_choose → solo_restore_tell
//
// Inside lead/ only.
#pragma once
#include "worker/rank/lead/solo.h"

struct store_owner solo_owner(const struct solo *s, const struct assignment *a);
// Refuses a finished job of whose last step no checkpoint is there, and a changed one that had a
// checkpoint where none is left. Nothing is made, so that a folder that was moved away can be put back.
int solo_restore_check(const struct solo *s, struct assignment *a, struct err *e);
// Sets restore and restore_step to the newest checkpoint that verifies, s->scan to all good ones.
// Refuses a finished job of whose last step the checkpoint is damaged, and one that has only damaged
// checkpoints.
int solo_restore_choose(struct solo *s, struct assignment *a, struct err *e);
// Says in the log which steps are trained again because a checkpoint that was there is not.
void solo_restore_tell(const struct solo *s, const struct assignment *a);
