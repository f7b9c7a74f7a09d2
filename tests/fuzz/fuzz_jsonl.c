// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a line of JSONL. What is accepted is UTF-8; what is refused says why.
#include <stdint.h>
#include <stdlib.h>

#include "common/base/utf8.h"
#include "common/data/prepare/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct err e = {0};
    const char *text = NULL;
    size_t len = 0;
    if (jsonl_text(&a, (const char *)data, size, "text", &text, &len, &e)) {
        if (!e.code || !*e.text)
            abort();
    } else {
        if (text[len])
            abort();
        for (size_t i = 0, n; i < len; i += n)
            if (!(n = utf8_length(text + i, len - i)))
                abort();
    }
    arena_clear(&a);
    return 0;
}
