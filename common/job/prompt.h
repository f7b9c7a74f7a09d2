// SPDX-License-Identifier: Apache-2.0
// The tokenizer that a job names, and the prompt of eval.sample as token ids.
#pragma once
#include "common/job/job.h"
#include "common/tokenizer/tokenizer.h"

// What data.tokenizer says, as tokenizer_open() takes it: bytes, ids, or the path.
const char *job_tokenizer(const struct job *job, struct arena *a);

// Appends the ids of a prompt in which \n, \t, \\ and \xNN (two hex digits) stand for bytes.
// ERR_INVALID: an escape that there is not, no text of this tokenizer, an id that is not below
// `vocab`, or no token at all.
int prompt_encode(const char *prompt, const struct tokenizer *t, int64_t vocab,
                  struct token_ids *ids, struct err *e);
