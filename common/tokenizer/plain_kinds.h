// SPDX-License-Identifier: Apache-2.0
// The kinds without a file: bytes and ids. Inside common/tokenizer/ only.
#pragma once
#include "common/tokenizer/tokenizer.h"

void bytes_encode(const char *text, size_t bytes, struct token_ids *out);
int ids_encode(const char *text, size_t bytes, struct token_ids *out, struct err *e);

// Appends the text of one id; `first`: no id came before it.
void bytes_decode(int32_t id, struct buf *text);
void ids_decode(int32_t id, bool first, struct buf *text);
