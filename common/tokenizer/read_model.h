// SPDX-License-Identifier: Apache-2.0
// Vocabularies, merges and added tokens, read into a pipeline. Inside common/tokenizer/ only.
#pragma once
#include "common/base/json.h"
#include "common/tokenizer/pipeline.h"

// Behind the normalizers and pre-tokenizers: whether it is byte-level is theirs to say.
int read_model(struct pipeline *p, const struct json *model, struct err *e);
int read_added_tokens(struct pipeline *p, const struct json *list, struct err *e); // null: none

// Whether an object has no key but these, which null ends, and `also`, which may be null.
int read_no_other_keys(const struct json *o, const char *also, const char *const *keys,
                       struct err *e);
int read_bool(const struct json *o, const char *key, bool *out, struct err *e);
int read_bool_or(const struct json *o, const char *key, bool absent, bool *out, struct err *e);
