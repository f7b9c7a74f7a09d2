// SPDX-License-Identifier: Apache-2.0
// Folders that appear whole, and the files of a tokenizer beside weights. Inside common/weights/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/json.h"

enum { FRESH_SUFFIX = 11 }; // characters that its name has more

// A new folder beside `path`, which it is to become. ERR_EXISTS: something is there that is not empty.
int fresh_begin(const char *path, struct arena *a, const char **tmp, struct err *e);
// Its files are synced; it takes its name.
int fresh_end(const char *tmp, const char *path, struct err *e);
void fresh_drop(const char *tmp); // with all that is in it

// Copies the files of a tokenizer and of generation from one folder to another, which is made where
// there are any. *n: how many.
int beside_copy(const char *from, const char *to, int *n, struct err *e);

enum { TOKEN_ID_FIELDS = 3 };
extern const char
    *const token_id_fields[TOKEN_ID_FIELDS]; // bos_token_id, eos_token_id, pad_token_id
// These fields of a JSON file, "7" or "[4, 5]" each; null where it is absent, null or an empty list.
// ERR_DATA: it is anything else; the error names file and field.
int token_ids_read(const struct json *from, const char *file, struct arena *a,
                   const char *ids[TOKEN_ID_FIELDS], struct err *e);
