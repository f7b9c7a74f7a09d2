// SPDX-License-Identifier: Apache-2.0
// The list of facts. See facts.h.
#include "common/compile/shard/facts.h"

void facts_add(struct facts *f, const struct fact *one)
{
    f->items = arena_grow(f->arena, f->items, sizeof *f->items, f->n, &f->cap);
    f->items[f->n++] = *one;
    f->errors += one->code != FACT_NO_MATCH; // that one changes nothing
}
