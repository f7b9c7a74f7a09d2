// SPDX-License-Identifier: Apache-2.0
// The inputs of `weft data prepare` and `train-tokenizer`, in their order: files by name, by pattern
// (pattern.h), and standard input. Inside common/data/prepare/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/hash.h"

struct source {
    const char *path; // "-": standard input
    bool lines;       // JSONL, a document a line; else a text, which is one document
    bool stream;      // no regular file: it can be read once, and its size is unknown
    uint64_t size;    // of the file as it lies there
};

struct sources {
    struct source *v; // in the arena
    int n, cap;
    uint64_t bytes; // of all but streams
    bool streams;   // one of them is one
    struct hash128
        digest; // of paths, formats, sizes and times of change: the same inputs, untouched
};

// `words` are paths and patterns; `format` is text, jsonl, or null: by their names.
// ERR_INVALID, ERR_NOTFOUND, ERR_IO.
int sources_find(struct sources *s, struct arena *a, const char *const *words, int n,
                 const char *format, struct err *e);
