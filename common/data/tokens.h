// SPDX-License-Identifier: Apache-2.0
// Reading samples of tokens, for dataset.c. Inside common/data/ only.
#pragma once
#include "common/data/dataset.h"

void tokens_close(struct dataset *ds);
// ERR_DATA naming the byte of an id that is not below the vocabulary.
int tokens_read(const struct dataset *ds, const uint64_t *ids, size_t n, int32_t *out,
                struct err *e);
