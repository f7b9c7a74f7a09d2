// SPDX-License-Identifier: Apache-2.0
// The pieces that a byte-level tokenizer's own expression, GPT-2's, cuts a text into: what a vocabulary is
// learned from. Bytes that are not UTF-8 are U+FFFD. And how bytes are written in such a vocabulary.
#pragma once
#include "common/base/buf.h"
#include "common/tokenizer/byte_level.h"

// `valid` is room for a text that has to be mended.
void pieces_each(const char *text, size_t bytes, struct buf *valid,
                 void (*put)(void *context, const char *s, size_t n), void *context);
