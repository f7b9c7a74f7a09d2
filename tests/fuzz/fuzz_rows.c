// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of metrics, in two readings.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/metrics/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"loss", "a.b", "a.b.c"};
    static FILE *file;
    struct rows r;
    struct err e = {0};
    file = file ? file : tmpfile();
    if (!file || ftruncate(fileno(file), 0) || pwrite(fileno(file), data, size / 2, 0) < 0)
        abort();
    rows_init(&r, keys, 3);
    if (rows_read(&r, fileno(file), &e) ||
        pwrite(fileno(file), data + size / 2, size - size / 2, (off_t)(size / 2)) < 0 ||
        rows_read(&r, fileno(file), &e))
        abort();
    for (size_t i = 1; i < r.n; i++)
        if (r.row[i].step <= r.row[i - 1].step || r.row[i].attempt < r.row[i - 1].attempt)
            abort();
    rows_clear(&r);
    return 0;
}
