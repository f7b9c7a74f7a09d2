// SPDX-License-Identifier: Apache-2.0
// A line of JSONL. Inside common/data/prepare/ only.
#pragma once
#include <stddef.h>

#include "common/base/arena.h"
#include "common/base/err.h"

// The text of a field of the object that the line is; it lies in the arena and may hold zero
// characters. ERR_DATA, ERR_LIMIT: the line is no object in UTF-8, or lacks the field.
int jsonl_text(struct arena *a, const char *line, size_t len, const char *field, const char **text,
               size_t *text_len, struct err *e);
