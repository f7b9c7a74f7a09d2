// SPDX-License-Identifier: Apache-2.0
// What `weft data inspect FILE` says about one data file: its format and shape, the range of its
// values and, where they look like labels, how many of each class there are. Reads the whole file.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/data/array.h"

enum { INSPECT_MAX_CLASSES = 1024 };

struct inspect {
    struct array array; // open: path, format, type, shape, file_len, offset
    // Over the finite values; all 0 where there are none.
    uint64_t finite;
    double min, max, mean;
    // A row of integers, all in 0 … INSPECT_MAX_CLASSES − 1, is taken for labels unless its format
    // is one of tokens.
    int classes; // largest label + 1, or 0: no labels
    uint64_t histogram[INSPECT_MAX_CLASSES];
};

// Errors of array_open(). `ids`: the elements of a file without a header, or ARRAY_TYPE_COUNT where
// the file must say them itself.
int inspect_open(struct inspect *in, const char *path, enum array_type ids, struct err *e);
void inspect_close(struct inspect *in);

void inspect_text(const struct inspect *in, struct buf *out); // a few lines
// One object: path, format, dtype, shape, bytes, offset, count, min, max, mean (null where no value
// is finite), nonfinite_values, classes (null or an array of counts).
void inspect_json(const struct inspect *in, const char *key, struct json_out *out);
