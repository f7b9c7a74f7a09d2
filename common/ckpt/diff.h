// SPDX-License-Identifier: Apache-2.0
// What `weft ckpt diff A B` says: two checkpoints, tensor by tensor, over what is no padding. Memory does
// not depend on how large tensors are.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/ckpt/load.h"

enum diff_kind { DIFF_EQUAL, DIFF_VALUES, DIFF_SHAPE, DIFF_ONLY_A, DIFF_ONLY_B, DIFF_KINDS };
struct diff_item {
    const char *name;
    enum diff_kind kind;
    int64_t elements;            // EQUAL, VALUES
    double most, norm_a, norm_b; // max |a − b|, √Σa², √Σb²; of f32 and bf16
    const char *a, *b;           // SHAPE: dtype and shape
};
struct diff {
    struct arena arena;
    int n;
    struct diff_item *items; // in A's order, then those of B alone
};

// `done` (may be null) is called with the bytes that were read, of all; anything but 0 stops with
// ERR_ABORTED. Every byte is checked against its digest.
int diff_make(struct diff *d, struct load *a, struct load *b,
              int (*done)(void *ctx, uint64_t bytes, uint64_t of), void *ctx, struct err *e);
void diff_clear(struct diff *d);
bool diff_same(const struct diff *d);
void diff_print_text(const struct diff *d, struct buf *out); // what differs, and a count
// {"tensors": [{name state elements max_abs norm_a norm_b a b}], "same"}
void diff_print_json(const struct diff *d, struct buf *out);
