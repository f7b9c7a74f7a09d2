// SPDX-License-Identifier: Apache-2.0
// The rules that can be taken away, one at a time, to see that the simulator then finds a broken
// invariant. Acts on the disk and of the daemons' owners are taken away here, decisions in the
// product's code by WEFT_RULE (base/protocol_rule.h), which only this build looks up.
#pragma once
#include "common/base/protocol_rule.h"

#define MUTATED(name) (!WEFT_RULE(name))
