// SPDX-License-Identifier: Apache-2.0
// A slice: a box of a global tensor, the unit in which checkpoints are written, dealt and read.
//
// Tensors are dense and row-major; a slice's bytes are its own box in row-major order. Nothing here
// does I/O but box_read().
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/op/op.h"

enum { SHARD_MAX_HEAD = 64 << 20 }; // bytes of a shard's head: of each tensor name, shape and place

struct box {
    int64_t start[MAX_DIMS]; // in the global tensor; zeros for a scalar
    struct shape shape;      // extents; n = 0 for a scalar
};

uint64_t box_bytes(const struct box *b, enum dtype t);
bool box_inside(const struct box *b, const struct shape *global);
bool box_overlap(const struct box *a, const struct box *b);

// Copies the part of `from`'s bytes [at, at + len) that lies in `to` to its place in to's bytes.
// `at` and `len` are multiples of the element size. Returns the bytes copied.
uint64_t box_copy(const struct box *to, void *to_bytes, const struct box *from,
                  const void *from_bytes, uint64_t at, uint64_t len, size_t elem);

// Reads `len` bytes from byte `at` of a file on. ERR_DATA: it ends before.
int slice_read(int fd, void *to, uint64_t len, uint64_t at, struct err *e);
// Reads the part of box `from`, whose bytes begin at byte `at` of a file, that lies in `to` to its place
// in to's bytes.
int box_read(const struct box *to, void *to_bytes, const struct box *from, int fd, uint64_t at,
             size_t elem, struct err *e);

// The bytes of a shape's elements; −1: more than 64 bits count.
int shape_bytes(const struct shape *s, uint64_t element, uint64_t *bytes);
const char *shape_text(const int64_t *dim, int n, struct arena *a); // "[2, 3]"

// dtypes as safetensors spells them: "F32", "BF16", "I32", "U8".
const char *ckpt_dtype_name(enum dtype t);
enum dtype ckpt_dtype_parse(const char *name); // DT_NONE when unknown
