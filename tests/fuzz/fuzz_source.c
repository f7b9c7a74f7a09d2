// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as SOURCE in a job's folder, and as the text of checkpoint.from. A SOURCE that is
// accepted names a checkpoint.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/ckpt/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct err e = {0};
    struct manifest_source pin;
    const char *place;
    int64_t step;
    if (source_parse(&a, (const char *)data, size, &pin, &e))
        must(e.code && *e.text);
    else
        must(pin.folder && pin.digest && pin.attempt > 0 && pin.attempt <= ATTEMPT_MAX &&
             pin.step >= 0);
    const char *from = arena_printf(&a, "%.*s", (int)size, (const char *)data);
    source_split(from, &a, &place, &step);
    must(step >= -1 && strncmp(place, from, strlen(place)) == 0);
    must(step < 0 ? strlen(place) == strlen(from) : from[strlen(place)] == '@');
    must(!source_is_path(place) || *source_path(place));
    arena_clear(&a);
    return 0;
}
