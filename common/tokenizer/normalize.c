// SPDX-License-Identifier: Apache-2.0
// Normalizers, one after the other. See pipeline.h.
#include "common/tokenizer/nfc.h"
#include "common/tokenizer/pipeline.h"

void replace_all(struct literal pattern, struct literal content, const char *s, size_t n,
                 size_t most, struct buf *out)
{
    const char *end = s + n;
    for (;;) {
        const char *found = memmem(s, (size_t)(end - s), pattern.s, pattern.n);
        buf_append(out, s, (size_t)((found ? found : end) - s));
        if (!found || out->len > most)
            return;
        buf_append(out, content.s, content.n);
        s = found + pattern.n;
    }
}

int normalize(const struct pipeline *p, const char *s, size_t n, struct buf turns[2],
              struct literal *normal, struct err *e)
{
    struct literal text = {s, n};
    for (int i = 0, turn = 0; i < p->nnormalizers; i++) {
        const struct normalizer *by = &p->normalizers[i];
        struct buf *to = &turns[turn];
        buf_reset(to);
        if (by->kind == NORMALIZE_NFC) {
            if (!nfc_text(text.s, text.n, to))
                continue;
        } else if (by->kind == NORMALIZE_REPLACE) {
            replace_all(by->pattern, by->content, text.s, text.n, TOKENIZER_MAX_TEXT, to);
        } else if (text.n) {
            buf_append(to, by->content.s, by->content.n);
            buf_append(to, text.s, text.n);
        }
        if (to->len > TOKENIZER_MAX_TEXT)
            return err_set(e, ERR_LIMIT, "the normalizers make it longer than %d bytes",
                           TOKENIZER_MAX_TEXT);
        text = (struct literal){buf_str(to), to->len};
        turn = !turn;
    }
    *normal = text;
    return 0;
}
