// SPDX-License-Identifier: Apache-2.0
// Fuzzes the manifest parser: any text is refused with a message, or what was parsed writes a text
// that parses to the same text again, with every slice inside its file and its tensor.
#include <stdlib.h>
#include <string.h>

#include "common/ckpt/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(const struct manifest *m)
{
    for (int i = 0; i < m->ntensors; i++)
        for (int k = 0; k < m->tensors[i].nslices; k++) {
            const struct manifest_slice *s = &m->tensors[i].slices[k];
            const struct manifest_file *f = &m->files[s->file];
            if (s->file < 0 || s->file >= m->nfiles || s->at < f->head_bytes ||
                s->at + s->bytes > f->bytes || !box_inside(&s->box, &m->tensors[i].shape) ||
                box_bytes(&s->box, m->tensors[i].dtype) != s->bytes)
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a;
    struct manifest m, back;
    struct buf text = {0}, again = {0};
    struct err e = {0};
    arena_init(&a);
    if (manifest_parse(&a, (const char *)bytes, len, &m, &e)) {
        if (e.code == 0 || e.text[0] == 0)
            abort();
    } else {
        check(&m);
        manifest_write(&m, &text);
        if (manifest_parse(&a, text.data, text.len, &back, &e))
            abort();
        manifest_write(&back, &again);
        if (strcmp(text.data, again.data))
            abort();
    }
    buf_clear(&text);
    buf_clear(&again);
    arena_clear(&a);
    return 0;
}
