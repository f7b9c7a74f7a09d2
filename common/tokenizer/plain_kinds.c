// SPDX-License-Identifier: Apache-2.0
// Bytes and ids as tokens. See plain_kinds.h.
#include "common/tokenizer/plain_kinds.h"

#include <ctype.h>

enum { BYTES = 256 };

void bytes_encode(const char *text, size_t bytes, struct token_ids *out)
{
    for (size_t i = 0; i < bytes; i++)
        token_ids_put(out, (unsigned char)text[i]);
}

int ids_encode(const char *text, size_t bytes, struct token_ids *out, struct err *e)
{
    for (size_t i = 0; i < bytes;) {
        if (isspace((unsigned char)text[i])) {
            i++;
            continue;
        }
        size_t start = i;
        int64_t id = 0;
        for (; i < bytes && isdigit((unsigned char)text[i]); i++)
            id = id > INT32_MAX ? id : id * 10 + text[i] - '0';
        if (start == i || (i < bytes && !isspace((unsigned char)text[i])))
            return err_set(e, ERR_INVALID,
                           "'%.*s' is no token id: without a vocabulary (ids) a text is numbers "
                           "with spaces between them",
                           (int)(bytes - start < 20 ? bytes - start : 20), text + start);
        token_ids_put(out, id > INT32_MAX ? INT32_MAX : (int32_t)id);
    }
    return 0;
}

void bytes_decode(int32_t id, struct buf *text)
{
    if (id >= 0 && id < BYTES)
        buf_putc(text, (char)id);
    else // a model's vocabulary may be larger than that
        buf_printf(text, "<%d>", id);
}

void ids_decode(int32_t id, bool first, struct buf *text)
{
    buf_printf(text, "%s%d", first ? "" : " ", id);
}
