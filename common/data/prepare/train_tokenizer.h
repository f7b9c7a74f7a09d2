// SPDX-License-Identifier: Apache-2.0
// What `weft data train-tokenizer` does: a byte-level BPE is learned from texts, and written as a
// tokenizer.json that `tokenizers` opens. Its pattern is GPT-2's, its special token <|endoftext|>.
//
// The file is a function of the texts and `vocab`. Long texts are cut behind a newline about every MiB, so
// that all threads count. Memory grows with the number of different pieces, not with the texts.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { TRAIN_VOCAB_LEAST = 257 }; // the special token and the bytes

struct train_report {
    uint64_t taken, total; // bytes of the inputs; total 0: it is not known
    uint64_t documents, pieces;
    uint32_t tokens; // learned so far; 0: the texts are still read
};
struct train_tokenizer {
    const char *const *inputs; // as prepare's
    int ninputs;
    const char *format, *field;
    const char
        *out; // replaced by a whole file, once all is learned; that it can be is seen at first
    uint32_t vocab; // with the special token and the 256 bytes
    int threads;
    // Called every tenth of a second or so: true stops it, with ERR_ABORTED.
    bool (*report)(void *context, const struct train_report *r);
    void *context;
};

// *r: how it ended. ERR_INVALID: an input; ERR_DATA, ERR_LIMIT: what it holds; ERR_IO.
int train_tokenizer(const struct train_tokenizer *t, struct train_report *r, struct err *e);
