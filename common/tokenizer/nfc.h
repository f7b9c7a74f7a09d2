// SPDX-License-Identifier: Apache-2.0
// Normal form C as `tokenizers` makes it: with the tables of Unicode 9, so that a mark which came
// later is moved by none and composes with none. Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"

// Appends the text (UTF-8) in normal form to `out` and returns true; or leaves `out` and returns false,
// since the text is in this form already.
bool nfc_text(const char *text, size_t bytes, struct buf *out);
