// SPDX-License-Identifier: Apache-2.0
// What makes training data the same data: its size and what stands in it, not where it lies or what
// its files are called. common/data finds it (dataset_identify), checkpoints hold it, and a job
// continues only with the data that it was trained with.
#pragma once
#include "common/base/err.h"
#include "common/base/hash.h"

struct data_identity {
    int64_t files, bytes;
    struct hash128 digest; // of each file's size, head, tail, and blocks between them
};

// ERR_INVALID, in words: `now` is not the data of `before`, with which the checkpoint of `step` was
// trained.
int data_identity_check(const struct data_identity *before, int64_t step,
                        const struct data_identity *now, struct err *e);
