// SPDX-License-Identifier: Apache-2.0
// Ids, nonces and keys: drawn from the seed in the decider's configuration, so that a schedule of
// the simulator is the same whenever it is played. Inside coordinator/ only.
#pragma once
#include <stdint.h>

#include "common/base/id.h"

struct coord;
void coord_random(struct coord *c, unsigned char out[32]); // the next 32 bytes of the seed
void coord_new_id(struct coord *c, char out[ID_LEN]);
