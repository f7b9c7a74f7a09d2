// SPDX-License-Identifier: Apache-2.0
// Vocabularies, merges and added tokens, read into a pipeline. Inside common/tokenizer/ only.
#pragma once
#include "common/base/json.h"
#include "common/tokenizer/pipeline.h"

// Behind the normalizers and pre-tokenizers: whether it is byte-level is theirs to say.
int read_model(struct pipeline *p, const struct json *model, struct err *e);
int read_added_tokens(struct pipeline *p, const struct json *list, struct err *e); // null: none
