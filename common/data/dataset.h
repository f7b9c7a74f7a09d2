// SPDX-License-Identifier: Apache-2.0
// A data set. Either a file of images and perhaps one of labels, where sample i is row i of both;
// or files of tokens, where sample i of a file is its ids i·seq … i·seq + seq (seq + 1 of them; the
// last is also the next sample's first). No sample reaches over the end of its file; what is left
// there is left out.
//
// dataset_open() checks everything a step relies on: types, equal and nonempty first dimensions,
// and every label against the number of classes (the label file is read once, whole). What a sample
// is made of beyond its element count (rows, columns, channels) does not matter here.
// Images stay in the file's type, so that a u8 pixel is copied to the device as one byte; the
// device casts with `scale`. Which samples a step takes is decided in sampler.h.
#pragma once
#include "common/base/data_identity.h"
#include "common/data/array.h"
#include "common/tokenizer/tokenizer.h"

struct token_file {
    struct array tokens;
    uint64_t first; // its first sample's number in the set
};

struct dataset {
    struct array images, labels; // not of tokens
    bool labelled;
    struct token_file *files; // of tokens, in the order of their names; owned
    int nfiles;
    uint64_t n;        // samples
    uint64_t features; // elements of one image
    int64_t classes;   // labels are 0 … classes − 1
    enum dtype dtype;  // of the images: DT_U8 or DT_F32
    int64_t seq;       // of tokens, then classes is their vocabulary; 0: images and labels
    double text_bytes; // of text for each token, as the index beside them says; 0: not known
    char tokenizer[TOKENIZER_IDENTITY_LEN]; // that made the tokens; empty: their files do not say
};

// ERR_DATA and ERR_UNSUPPORTED name file and byte offset, or both files and what disagrees.
// `labels` may be null; else `classes` ≥ 1. The files must lie beneath `root` (base/root.h); null:
// anywhere. After a failure there is nothing to close.
int dataset_open(struct dataset *ds, const char *root, const char *images, const char *labels,
                 int64_t classes, struct err *e);
// Tokens: `path` may be a pattern (pattern.h), `type` is that of a raw file's ids; `vocab` bounds
// them as they are read.
int dataset_open_tokens(struct dataset *ds, const char *root, const char *path,
                        enum array_type type, int64_t seq, int64_t vocab, struct err *e);
void dataset_close(struct dataset *ds); // a zeroed or closed one is fine

// Reads blocks of all files, at their beginning, at their end and between, as many as it takes to keep
// two data sets apart and not so many that a large one is read whole. ERR_DATA if a file was cut.
int dataset_identify(const struct dataset *ds, struct data_identity *out, struct err *e);

size_t dataset_sample_bytes(const struct dataset *ds); // of one image as dataset_read() writes it
size_t dataset_label_bytes(const struct dataset *ds);  // of one label; 0: there is none

// Gathers samples: row k of images_out (n × features elements of `dtype`) and labels_out[k] become
// sample ids[k] < ds->n. Of tokens a row of images_out is seq + 1 ids of i32; without labels
// labels_out is not written. Any thread, several at once. ERR_DATA if a file was cut since it was
// opened or a label overwritten by one out of range; the outputs are then undefined.
int dataset_read(const struct dataset *ds, const uint64_t *ids, size_t n, void *images_out,
                 int32_t *labels_out, struct err *e);
