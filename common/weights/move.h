// SPDX-License-Identifier: Apache-2.0
// Makes the elements of one object (a parameter, a foreign tensor) of those of the other side's, in the
// order of its bytes, in chunks: memory does not depend on how large it is.
// Inside common/weights/ only.
#pragma once
#include <stdbool.h>

#include "common/ckpt/slice.h"
#include "common/weights/mapping.h"

// Elements of a chunk. Where a rotary order or a joined product must be seen whole, a chunk may have up
// to four times as many; more is refused.
enum { MOVE_CHUNK = 8 << 20 };

struct mover {
    const struct mapping *map;
    enum weight_side to;
    // Reads a box of an object of the other side, in the dimensions that pieces have there, as f32.
    int (*read)(void *ctx, int object, const struct box *b, float *to, struct err *e);
    // Takes the next `n` elements of the object. May return ERR_ABORTED to stop.
    int (*put)(void *ctx, const float *from, int64_t n, struct err *e);
    void *ctx;
    float *chunk, *box; // its own
    int64_t room;       // elements of each
};

int move_object(struct mover *m, int object, struct err *e);
void mover_clear(struct mover *m);
