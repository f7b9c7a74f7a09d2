// SPDX-License-Identifier: Apache-2.0
// The regular expressions of published tokenizers, each with a matcher written by hand.
// Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>

// What an expression finds first at or behind `s`: [*from, *to), never empty. `end` ends the text that
// it sees. False: nothing.
typedef bool (*find_match)(const char *s, const char *end, const char **from, const char **to);

find_match known_pattern(const char *expression); // null: none of them
find_match byte_level_pattern(void);              // ByteLevel's own, GPT-2's
