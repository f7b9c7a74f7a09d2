// SPDX-License-Identifier: Apache-2.0
// Zig-zag order. See zigzag.h.
#include "common/compile/layout/zigzag.h"

static int64_t chunk_size(const struct zigzag *z)
{
    return z->parts > 1 ? z->seq / (2 * z->parts) : z->seq;
}

int64_t zigzag_position(const struct zigzag *z, int64_t column)
{
    int64_t size = chunk_size(z), slot = column / size, part = slot / 2;
    int64_t chunk = slot % 2 ? 2 * z->parts - 1 - part : part;
    return chunk * size + column % size;
}

int64_t zigzag_run(const struct zigzag *z, int64_t column)
{
    int64_t size = chunk_size(z);
    return size - column % size;
}
