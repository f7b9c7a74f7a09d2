// SPDX-License-Identifier: Apache-2.0
// Folders that appear whole, and the files of a tokenizer beside weights. Inside common/weights/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/json.h"

#define FRESH_SUFFIX ".weft-tmp"

// A folder that is made beside the one that it is to become, under its name and FRESH_SUFFIX. Whoever makes
// it holds a lock on it, so that the next one knows what a killed one left, and removes that.
struct fresh {
    const char *tmp; // null: there is none
    int fd;          // of the folder, locked
};

// ERR_EXISTS: something is at `path` that is not empty, or another process makes it.
int fresh_begin(struct fresh *f, const char *path, struct arena *a, struct err *e);
// Its files are synced; it takes its name.
int fresh_end(struct fresh *f, const char *path, struct err *e);
// Closes it, and removes it with all that is in it unless it took its name. A zeroed one is fine.
void fresh_clear(struct fresh *f);

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
