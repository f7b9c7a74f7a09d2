// SPDX-License-Identifier: Apache-2.0
// Fuzzes the readers of idx, npy and llm.c's tokens: any bytes are refused with a message or are an
// array whose every element lies inside them.
#include <stdlib.h>

#include "common/data/array.h"
#include "tests/support/array_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct array a;
    struct err e = {0};
    if (parse_bytes(&a, bytes, len, "input", &e) != 0) {
        if (e.code == 0 || e.text[0] == 0 || a.path)
            abort();
        return 0;
    }
    size_t size = array_type_size(a.type);
    if (a.data != bytes + a.offset || a.count * size != len - a.offset)
        abort();
    unsigned char *copy = malloc(len + 1);
    array_copy(&a, 0, a.count, copy);
    volatile double sum = 0;
    for (uint64_t i = 0; i < a.count; i++)
        sum = sum + array_real(&a, i);
    free(copy);
    array_close(&a);
    return 0;
}
