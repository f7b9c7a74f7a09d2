// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as data.tokenizer says: prompts of samples, and what a model answers.
//
//   bytes   a token is a byte. Text may hold the escapes \n, \t, \\ and \xNN (two hex digits)
//   ids     weft has no vocabulary of words: text is the ids themselves, "15496 995"
#pragma once
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/job_sections.h"

// ERR_INVALID says what is wrong with the text. `ids` lie in the arena.
int tokenizer_encode(enum job_tokenizer t, const char *text, int64_t vocab, struct arena *a,
                     int32_t **ids, int64_t *n, struct err *e);
// Always valid UTF-8 without control characters but newline and tab: any other byte is \xNN.
void tokenizer_decode(enum job_tokenizer t, const int32_t *ids, int64_t n, struct buf *text);
