// SPDX-License-Identifier: Apache-2.0
// What `weft data prepare` does: text becomes a folder of token shards with an index.
//
// The folder's bytes are a function of the inputs and of this struct without `threads`. A process that
// dies is continued by the next with the same words, from the last shards that were kept: every 256 MiB
// of tokens, or where a shard is complete. Shards have their names only when all are done, and
// the index comes last.
#pragma once
#include "common/data/token_index.h"
#include "common/tokenizer/tokenizer.h"

enum {
    PREPARE_SHARD_TOKENS = 100000000,
    PREPARE_END_BYTES = 255, // ends a document of bytes: no text in UTF-8 holds it, and so no JSONL
    PREPARE_THREADS = 256,   // at most
};
#define PREPARE_VAL_LEAST \
    1e-9 // of fractions that are not 0: runs of documents are counted in 64 bits

struct prepare_report;
struct prepare {
    const char *const *inputs; // paths, patterns, "-"
    int ninputs;
    const char *format; // text, jsonl, or null: by the names
    const char *field;  // of JSONL that holds the text
    const char *out;
    const char *tokenizer; // its name, for the index
    const struct tokenizer *t;
    int32_t end;         // the id behind each document
    double val_fraction; // 0, or from PREPARE_VAL_LEAST to less than 1
    int64_t shard_tokens;
    int threads;
    // Called every tenth of a second or so, on the caller's thread; true: stop, with ERR_ABORTED. What
    // was done by then is kept.
    bool (*report)(void *context, const struct prepare_report *r);
    void *context;
};

struct prepare_report {
    uint64_t taken, total; // bytes of the inputs as they lie there; total 0: it is not known
    uint64_t tokens, documents;
};

struct prepare_result {
    struct token_shard sum[TOKEN_SPLITS]; // tokens, documents, bytes
    int shards[TOKEN_SPLITS];
    enum array_type type;
    bool found_done;      // an earlier run had done it all
    bool kept;            // after a failure: the folder holds work that the same command continues
    uint64_t damaged;     // parts of texts that were no UTF-8, which the tokenizer read as U+FFFD
    char damaged_in[200]; // the first input that had some
};

// After a failure the folder holds what was kept of the work or, where that is nothing, is as it was.
// ERR_INVALID: an input, the folder (it is in use, holds other things, or is of another command);
// ERR_DATA, ERR_LIMIT: what an input holds, with its place; ERR_IO: a full disk, mostly.
int prepare_run(const struct prepare *p, struct prepare_result *r, struct err *e);
// Whether the document of this number is one of the validation set: of each 1/fraction documents that
// follow one another, one, which is drawn.
bool prepare_is_val(double fraction, uint64_t document);
