// SPDX-License-Identifier: Apache-2.0
// What `weft data inspect PATH` says. Of a data file: its format and shape, the range of its values,
// where they look like labels how many of each class there are, and of tokens their first ones as text,
// where the tokenizer lies beside them. Of a folder of tokens, or its index: what it holds. Reads whole
// files: those of a folder are held against their digests.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/data/token_index.h"

enum { INSPECT_MAX_CLASSES = 1024 };

struct inspect {
    bool folder;              // `index` is what was looked at, at `path`; else `array`
    struct token_index index; // of a folder, or beside a shard; without shards: there is none
    struct arena arena;       // of the index
    const char *path;
    struct buf begins;  // the first tokens' text
    bool decoded;       // it is known
    struct array array; // open: path, format, type, shape, file_len, offset
    // Over the finite values; all 0 where there are none.
    uint64_t finite;
    double min, max, mean;
    // A row of integers, all in 0 … INSPECT_MAX_CLASSES − 1, is taken for labels unless its format
    // is one of tokens.
    int classes; // largest label + 1, or 0: no labels
    uint64_t histogram[INSPECT_MAX_CLASSES];
};

// Errors of array_open() and token_index_read(), and what is wrong with a folder's shard. `ids`: the
// elements of a file without a header, or ARRAY_TYPE_COUNT where the file must say them itself.
int inspect_open(struct inspect *in, const char *path, enum array_type ids, struct err *e);
void inspect_close(struct inspect *in);

void inspect_text(const struct inspect *in, struct buf *out); // a few lines
// One object. Of a file: path, format, dtype, shape, bytes, offset, count, min, max, mean (null where no
// value is finite), nonfinite_values, classes (null or an array of counts), begins (text, or null). Of a
// folder: path, format ("prepared"), dtype, tokenizer, vocab, end, train and val (each tokens,
// documents, bytes), begins.
void inspect_json(const struct inspect *in, const char *key, struct json_out *out);
