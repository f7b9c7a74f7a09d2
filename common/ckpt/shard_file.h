// SPDX-License-Identifier: Apache-2.0
// A shard file: one rank's slices as a safetensors file; and the heads of other people's such files.
//
//   0        8                    8 + h                                        8 + h + d
//   +--------+--------------------+--------------------------------------------+
//   | h: u64 | JSON head, padding | slices: dense, in order, without holes     |
//   +--------+--------------------+--------------------------------------------+
//
// h is little-endian; the JSON is padded with spaces until 8 + h is a multiple of 64. The JSON is
// {"__metadata__": {…}, NAME: {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, …}; a file
// is valid if and only if names are unique, every e − b equals dtype × shape, and the ranges cover
// [0, d) exactly. A slice that is not its whole tensor keeps the tensor's name with the slice's
// shape (a rank writes at most one slice a tensor); the manifest says where it sits.
// The 8 bytes and the JSON have one digest, every slice one of its own: each byte is covered.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/stream.h"
#include "common/ckpt/slice.h"

enum { SHARD_ALIGN = 64 };

struct shard_slice {
    const char *name;
    enum dtype dtype; // of a foreign file DT_NONE where no tensor of ours has such elements
    struct shape shape;
    uint64_t at, bytes; // in the file: from the file's first byte
    const char *type;   // read: the dtype's name, "F16"
};
struct shard_meta {
    const char *key, *value;
};

// What the writer knows before the first byte: the head's text and each slice's offset.
struct shard_plan {
    int n;
    struct shard_slice *slices; // the arena's
    struct buf head;            // length field, JSON, padding
    uint64_t bytes;             // of the whole file
};
// `slices` need name, dtype and shape; their offsets are filled in the plan's copy, in order.
int shard_plan_make(struct arena *a, const struct shard_slice *slices, int n,
                    const struct shard_meta *meta, int nmeta, struct shard_plan *out,
                    struct err *e);
void shard_plan_clear(struct shard_plan *p);

// Writing: shard_write_head, then shard_write_slice for each slice in order, then the stream's sync
// and close. `to` is fresh. The digests come out as they are known.
int shard_write_head(struct stream *to, const struct shard_plan *p, struct hash128 *digest,
                     struct err *e);
int shard_write_slice(struct stream *to, const struct shard_plan *p, int i, const void *bytes,
                      struct hash128 *digest, struct err *e);

// Reading: parses and validates everything but the slices' bytes. `len` is the whole file's length.
// FOREIGN: with every dtype that safetensors files have.
enum shard_origin { SHARD_OURS, SHARD_FOREIGN };
int shard_parse(struct arena *a, const void *head, uint64_t head_len, uint64_t len,
                enum shard_origin origin, struct shard_plan *out,
                struct err *e); // `out->head` stays empty
// Reads a file's head, hashes it and parses it. After that the stream stands at the first slice.
int shard_read_head(struct arena *a, struct stream *from, uint64_t len, enum shard_origin origin,
                    struct shard_plan *out, struct hash128 *digest, struct err *e);
