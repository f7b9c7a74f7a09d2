// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the file of events that a sink continues. What it keeps is a beginning
// of what was there, of whole records, to which it appends; opened again nothing more is cut off.
// An input's first byte says whether checksums are made right, without which the fuzzer would not
// come behind the first record.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/sinks/event_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static uint32_t masked(const void *data, size_t len)
{
    uint32_t crc = event_crc32c(data, len);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

// Puts right checksums into each record, as far as the lengths lead; with `odd` not the event's of
// every third.
static void mend(uint8_t *file, size_t size, int odd)
{
    uint64_t len;
    size_t at = 0;
    for (int i = 1; size - at >= 16; i++) {
        memcpy(&len, file + at, sizeof len);
        uint32_t crc = masked(&len, sizeof len);
        memcpy(file + at + 8, &crc, sizeof crc);
        if (len > size - at - 16)
            return;
        crc = masked(file + at + 12, len);
        if (!odd || i % 3)
            memcpy(file + at + 12 + len, &crc, sizeof crc);
        at += 16 + len;
    }
}

// How many bytes from the beginning are records whose length is whole and right.
static size_t whole_records(const uint8_t *file, size_t size, size_t *last)
{
    uint64_t len;
    uint32_t crc;
    size_t at = 0;
    *last = 0;
    for (;; at += 16 + len) {
        if (size - at < 16)
            return at;
        memcpy(&len, file + at, sizeof len);
        memcpy(&crc, file + at + 8, sizeof crc);
        if (crc != masked(&len, sizeof len) || len > size - at - 16)
            return at;
        *last = at;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/fuzz-events-XXXXXX";
    struct event_file f;
    struct err e = {0};
    size_t last;
    uint32_t crc;
    if (!size--)
        return 0;
    uint8_t *file = malloc(size + 1), *kept = malloc(size + 1);
    int fd = mkstemp(path);
    must(file && kept && fd >= 0);
    memcpy(file, data + 1, size);
    if (data[0] % 3)
        mend(file, size, data[0] % 3 == 2);
    must(write(fd, file, size) == (ssize_t)size);
    must(event_file_open(AT_FDCWD, path, &f, &e) == 0);
    size_t end = whole_records(file, size, &last);
    if (end) { // the last of them counts if its event is whole too
        size_t len = end - last - 16;
        memcpy(&crc, file + last + 12 + len, sizeof crc);
        end = crc == masked(file + last + 12, len) ? end : last;
    }
    must((size_t)f.end == end && f.continues == (end > 0));
    event_begin(&f, 1, 2);
    event_scalar(&f, "loss", 3);
    event_end(&f);
    must(event_file_write(&f, &e) == 0);
    size_t written = (size_t)f.end;
    event_file_close(&f);
    must(event_file_open(AT_FDCWD, path, &f, &e) == 0);
    must((size_t)f.end == written && written > end);
    must(pread(f.fd, kept, end, 0) == (ssize_t)end && memcmp(kept, file, end) == 0);
    event_file_close(&f);
    unlink(path);
    close(fd);
    free(kept);
    free(file);
    return 0;
}
