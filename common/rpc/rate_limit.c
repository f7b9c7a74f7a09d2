// SPDX-License-Identifier: Apache-2.0
// Token buckets. See rate_limit.h.
#include "common/rpc/rate_limit.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/heap.h"

struct bucket {
    double tokens;
    int64_t at_ns; // when `tokens` was computed
};

void rate_init(struct rate *r, int per_s)
{
    *r = (struct rate){.per_s = per_s};
}

void rate_clear(struct rate *r)
{
    for (size_t i = 0; i < r->callers.cap; i++)
        free(r->callers.slots[i].key ? r->callers.slots[i].value : NULL);
    map_clear(&r->callers);
}

static void fill_bucket(const struct rate *r, struct bucket *b, int64_t now_ns)
{
    double most = (double)r->per_s * RATE_BURST;
    b->tokens += (double)(now_ns - b->at_ns) / CLOCK_S * r->per_s;
    b->tokens = b->tokens < most ? b->tokens : most;
    b->at_ns = now_ns;
}

// A caller whose bucket is full is as good as unknown, so its bucket is dropped.
static void drop_full_buckets(struct rate *r, int64_t now_ns)
{
    struct map kept = {0};
    for (size_t i = 0; i < r->callers.cap; i++) {
        struct map_slot *s = &r->callers.slots[i];
        struct bucket *b = s->value;
        if (!s->key)
            continue;
        fill_bucket(r, b, now_ns);
        if (b->tokens < (double)r->per_s * RATE_BURST)
            map_put(&kept, s->key, b);
        else
            free(b);
    }
    map_clear(&r->callers);
    r->callers = kept;
}

static struct bucket *find_bucket(struct rate *r, const char *who, int64_t now_ns)
{
    struct bucket *b = map_get(&r->callers, who);
    if (b)
        return b;
    if (r->callers.n >= RATE_CALLERS) {
        drop_full_buckets(r, now_ns);
        who = r->callers.n >= RATE_CALLERS ? "" : who;
        b = map_get(&r->callers, who);
    }
    if (!b) {
        b = heap_alloc(sizeof *b);
        *b = (struct bucket){(double)r->per_s * RATE_BURST, now_ns};
        map_put(&r->callers, who, b);
    }
    return b;
}

bool rate_take(struct rate *r, const char *who, int64_t now_ns)
{
    struct bucket *b = find_bucket(r, who, now_ns);
    fill_bucket(r, b, now_ns);
    if (b->tokens < 1)
        return false;
    b->tokens -= 1;
    return true;
}
