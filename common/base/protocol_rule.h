// SPDX-License-Identifier: Apache-2.0
// The rules of the protocol, by name (protocol_rules.def). In products WEFT_RULE(x) is the constant
// true and leaves nothing behind. In the simulator's build (-DWEFT_FAULTS) a test takes one rule
// away and must find a schedule that then goes wrong.
#pragma once

enum weft_rule {
#define X(name) RULE_##name,
#include "common/base/protocol_rules.def"
#undef X
    RULE_COUNT
};

#ifdef WEFT_FAULTS
extern unsigned long long weft_rules_off; // a bit a rule
#define WEFT_RULE(name) (!((weft_rules_off >> RULE_##name) & 1))
#else
#define WEFT_RULE(name) 1
#endif
