// SPDX-License-Identifier: Apache-2.0
// The contents of a byte-level vocabulary: each byte is written as a printable character. What is
// printable in Latin-1 stands for itself, the other 68 bytes, in their order, are U+0100 to U+0143.
// Inside common/tokenizer/ only.
#pragma once
#include <stdint.h>

enum {
    BYTE_LEVEL_FIRST = 0x100,  // bytes 00 to 20
    BYTE_LEVEL_MIDDLE = 0x121, // bytes 7f to a0
    BYTE_LEVEL_HYPHEN = 0x143, // byte ad
    BYTE_LEVEL_LONGEST = 2,    // bytes of such a character in UTF-8
};

static inline uint32_t byte_level_character(unsigned byte)
{
    if (byte <= 0x20)
        return BYTE_LEVEL_FIRST + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return BYTE_LEVEL_MIDDLE + byte - 0x7f;
    return byte == 0xad ? BYTE_LEVEL_HYPHEN : byte;
}

// The byte that a character stands for; −1: none.
static inline int byte_level_byte(uint32_t c)
{
    int byte = c < BYTE_LEVEL_FIRST    ? (int)c
               : c < BYTE_LEVEL_MIDDLE ? (int)(c - BYTE_LEVEL_FIRST)
               : c < BYTE_LEVEL_HYPHEN ? (int)(c - BYTE_LEVEL_MIDDLE) + 0x7f
                                       : 0xad;
    return byte_level_character((unsigned)byte) == c ? byte : -1;
}

// Writes the character in UTF-8; returns its length.
static inline int byte_level_put(unsigned byte, char *to)
{
    uint32_t c = byte_level_character(byte);
    if (c < 0x80) {
        *to = (char)c;
        return 1;
    }
    to[0] = (char)(0xc0 | c >> 6);
    to[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}
