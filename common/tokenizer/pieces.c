// SPDX-License-Identifier: Apache-2.0
// Pieces of text; see pieces.h.
#include "common/tokenizer/pieces.h"

#include "common/tokenizer/char_class.h"
#include "common/tokenizer/pipeline.h"

void pieces_each(const char *text, size_t bytes, struct buf *valid,
                 void (*put)(void *context, const char *s, size_t n), void *context)
{
    find_match find = byte_level_pattern();
    char_classes_make();
    struct literal whole = make_valid(text, bytes, valid);
    const char *at = whole.s, *end = whole.s + whole.n, *from, *to;
    for (; at < end && find(at, end, &from, &to); at = to)
        put(context, from, (size_t)(to - from));
}
