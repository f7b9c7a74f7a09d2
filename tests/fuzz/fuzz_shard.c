// SPDX-License-Identifier: Apache-2.0
// Fuzzes the shard reader: any bytes are refused with a message or are a file whose slices lie side
// by side from the head to the end, and whose own writing of them reads back.
#include <stdlib.h>
#include <string.h>

#include "common/ckpt/shard_file.h"
#include "tests/support/find_slice.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void write_again(struct arena *a, const struct shard_plan *p)
{
    struct shard_plan again, back;
    struct err e = {0};
    if (shard_plan_make(a, p->slices, p->n, NULL, 0, &again, &e))
        return; // a name that a writer would not choose
    if (shard_parse(a, again.head.data, again.head.len, again.bytes, SHARD_OURS, &back, &e))
        abort();
    for (int i = 0; i < p->n; i++) {
        const struct shard_slice *s = find_slice(&back, p->slices[i].name);
        if (!s || s->bytes != p->slices[i].bytes || s->dtype != p->slices[i].dtype ||
            !shape_equal(&s->shape, &p->slices[i].shape))
            abort();
    }
    shard_plan_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a;
    struct shard_plan p;
    struct err e = {0};
    arena_init(&a);
    if (shard_parse(&a, bytes, len, len, SHARD_OURS, &p, &e)) {
        if (e.code == 0 || e.text[0] == 0)
            abort();
    } else {
        uint64_t at = p.n ? p.slices[0].at : len;
        for (int i = 0; i < p.n; i++) {
            if (p.slices[i].at != at)
                abort();
            at += p.slices[i].bytes;
        }
        if (at != len)
            abort();
        write_again(&a, &p);
    }
    arena_clear(&a);
    return 0;
}
