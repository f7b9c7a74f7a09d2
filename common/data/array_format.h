// SPDX-License-Identifier: Apache-2.0
// Between array.c and the readers of single formats. Inside common/data/ only.
//
// A reader gets an array whose path, file and file_len are set and whose first bytes are its magic.
// It fills type, big_endian, shape and offset (≤ file_len); array.c multiplies the shape out,
// compares with the file's length and sets the rest.
#pragma once
#include "common/data/array.h"

// The first bytes of llm.c's files.
enum { LLMC_MAGIC_U16 = 20240520, LLMC_MAGIC_U32 = 20240801 };
#define LLMC_U16 "\x88\xd8\x34\x01"
#define LLMC_U32 "\xa1\xd9\x34\x01"

// Other files of llm.c, which hold no tokens: 20240326, 20240522 and 20240803.
#define LLMC_GPT2      "\xc6\xd7\x34\x01"
#define LLMC_HELLASWAG "\x8a\xd8\x34\x01"
#define LLMC_LLAMA     "\xa3\xd9\x34\x01"

int idx_parse(struct array *a, struct err *e);
int npy_parse(struct array *a, struct err *e);
int llmc_parse(struct array *a, struct err *e); // llmc.c
