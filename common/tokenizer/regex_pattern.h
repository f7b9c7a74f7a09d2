// SPDX-License-Identifier: Apache-2.0
// Any other regular expression, by PCRE2. `tokenizers` has Oniguruma: an expression is rewritten so that
// both find the same, and what cannot be, or what nobody has held against Oniguruma, is refused by name:
//
//   \s \S             White_Space, written out (PCRE2's has U+180E as well)
//   \p{L} …           L M N P S Lu Ll Lt Lm Lo, with the characters of Unicode 15 and 16
//   ^ $               at every line, as Oniguruma has them
//   (?i: …)           only the two groups of contractions that published patterns have
//   {n,m}             not possessive, not {n}?
//   [ … ]             no class in a class, no &&, no \P and \S
//   refused           \d \w \b …, look-behind, names, back references, flags, what matches the empty text
//
// Inside common/tokenizer/ only.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

enum { REGEX_MAX = 1 << 14 }; // bytes of an expression

struct regex_pattern; // shared by threads
struct regex_room;    // what a thread needs to match with any of them

// ERR_UNSUPPORTED names what is refused; ERR_DATA: no expression.
int regex_pattern_new(struct regex_pattern **p, const char *expression, struct err *e);
void regex_pattern_free(struct regex_pattern *p); // null is fine

struct regex_room *regex_room_new(void);
void regex_room_free(struct regex_room *r); // null is fine

// Finds the first match in text[at…bytes): 1 and [*from, *to), or 0, or −1 with an error (ERR_LIMIT).
int regex_pattern_find(const struct regex_pattern *p, struct regex_room *r, const char *text,
                       size_t bytes, size_t at, size_t *from, size_t *to, struct err *e);
