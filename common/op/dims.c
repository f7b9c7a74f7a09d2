// SPDX-License-Identifier: Apache-2.0
// Names of dimensions. See dims.h.
#include "common/op/dims.h"

#include <string.h>

#include "common/base/err.h"

static const char *const known[DIM_KNOWN] = {[DIM_NONE] = "-",
#define X(id, text) [DIM_##id] = #text,
                                             DIM_TABLE(X)
#undef X
};

void dims_init(struct dims *d, struct arena *a)
{
    *d = (struct dims){
        .arena = a,
        .like = {[DIM_KV_HEADS] = DIM_HEADS, [DIM_GROUP] = DIM_BATCH, [DIM_CAPACITY] = DIM_SEQ}};
}

enum dim dims_id(struct dims *d, const char *name)
{
    for (int i = 1; i < DIM_KNOWN; i++)
        if (strcmp(known[i], name) == 0)
            return (enum dim)i;
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->own[i].name, name) == 0)
            return (enum dim)(DIM_KNOWN + i);
    d->own = arena_grow(d->arena, d->own, sizeof *d->own, d->n, &d->cap);
    d->own[d->n] = (struct dim_own){arena_strdup(d->arena, name), DIM_NONE};
    return (enum dim)(DIM_KNOWN + d->n++);
}

const char *dims_name(const struct dims *d, enum dim id)
{
    if (id < DIM_KNOWN)
        return known[id];
    PRE((int)id - DIM_KNOWN < d->n);
    return d->own[id - DIM_KNOWN].name;
}

enum dim dims_like(const struct dims *d, enum dim id)
{
    PRE((int)id < DIM_KNOWN + d->n);
    return id < DIM_KNOWN ? d->like[id] : d->own[id - DIM_KNOWN].like;
}

bool dims_follows(const struct dims *d, enum dim id, enum dim like)
{
    while (id != like && id != DIM_NONE)
        id = dims_like(d, id);
    return id == like;
}

void dims_set_like(struct dims *d, enum dim id, enum dim like)
{
    PRE(id != DIM_NONE && (int)id < DIM_KNOWN + d->n);
    if (dims_follows(d, like, id))
        return;
    *(id < DIM_KNOWN ? &d->like[id] : &d->own[id - DIM_KNOWN].like) = like;
}
