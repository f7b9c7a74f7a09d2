// SPDX-License-Identifier: Apache-2.0
// Characters of UTF-8: whether bytes form one, and whether it steers a terminal.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The length of the UTF-8 sequence that starts at `s`, or 0 (overlong, surrogate, cut short, none).
size_t utf8_length(const char *s, size_t left);
// How many of the bytes (at least 1 of them) begin a sequence as far as it goes, and into *whole its
// length, or 0 if the first byte begins none: the part that Unicode reads as one U+FFFD.
size_t utf8_part(const char *s, size_t left, size_t *whole);
// How many of the last bytes begin a character that is not all there.
size_t utf8_unfinished(const char *s, size_t n);
// The character of a sequence of this length.
uint32_t utf8_decode(const char *s, size_t length);
// Control characters of ASCII (tab and newline do not count) and of Latin-1 (C1), and Unicode's
// marks of direction and separators of lines: they move a terminal's cursor, give it orders, or
// turn the order of what a reader sees around.
bool utf8_steers(uint32_t character);
