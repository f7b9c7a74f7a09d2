// SPDX-License-Identifier: Apache-2.0
// What `weft data prepare` does: text becomes a file of tokens.
#pragma once
#include "common/base/err.h"

// Every byte is a token, 0 to 255, written as a raw u16. `to` is replaced only by a whole file.
// ERR_NOTFOUND, ERR_INVALID (an empty text; `to` is the text, or no regular file), ERR_IO.
// *tokens: how many.
int prepare_bytes(const char *from, const char *to, unsigned long long *tokens, struct err *e);
