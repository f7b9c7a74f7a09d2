// SPDX-License-Identifier: Apache-2.0
// Memory of the CPU device: anonymous mappings in huge pages.
//
// First touch of fresh memory is dear (a step that pays for it takes several times as long), so a
// region is touched when it is made, in the slices in which the threads will work on it. A region
// that one huge page does not fill takes small ones.
#include "kernels/cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/page_size.h"

struct region {
    struct list link;
    void *map, *base; // mapped; handed out
    size_t map_bytes;
    size_t device_bytes; // counted as device memory; 0: host memory
};

static void touch_slice(void *base, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += SMALL_PAGE)
        *((volatile char *)base + at) = 0;
}

static int map_region(struct device *d, size_t bytes, bool host, void **out, struct err *e)
{
    bool huge = bytes >= HUGE_PAGE;
    size_t page = huge ? HUGE_PAGE : SMALL_PAGE;
    if (bytes > SIZE_MAX / 2)
        return err_set(e, ERR_INVALID, "cannot map %zu bytes", bytes);
    size_t need = ((bytes ? bytes : 1) + page - 1) / page * page;
    size_t total = need + (huge ? page : 0);
    struct region *r = malloc(sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory to note a region");
    r->map_bytes = total;
    r->map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->map == MAP_FAILED) {
        free(r);
        return err_errno(e, ERR_NOMEM, "cannot map %zu bytes", bytes);
    }
    size_t skip = huge ? (page - (uintptr_t)r->map % page) % page : 0;
    r->base = (char *)r->map + skip;
    if (huge)
        madvise(r->base, need, MADV_HUGEPAGE); // refused: small pages do
    r->device_bytes = host ? 0 : bytes;
    d->allocated += r->device_bytes;
    list_append(&d->regions, &r->link);
    pool_for(d->pool, (int64_t)need, (int64_t)page, touch_slice, r->base);
    *out = r->base;
    return 0;
}

int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    return map_region(d, bytes, false, out, e);
}

int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    return map_region(d, bytes, true, out, e);
}

static void free_region(struct device *d, struct region *r)
{
    d->allocated -= r->device_bytes;
    list_remove(&r->link);
    munmap(r->map, r->map_bytes);
    free(r);
}

void memory_free(struct device *d, void *p)
{
    if (!p)
        return;
    list_for_each (it, &d->regions) {
        struct region *r = list_entry(it, struct region, link);
        if (r->base == p) {
            free_region(d, r);
            return;
        }
    }
    PRE(!"memory of this device");
}

void memory_clear(struct device *d)
{
    list_for_each (it, &d->regions)
        free_region(d, list_entry(it, struct region, link));
}
