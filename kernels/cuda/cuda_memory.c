// SPDX-License-Identifier: Apache-2.0
// Memory of the CUDA device: regions of its own, pinned host memory, and windows that others
// mapped.
//
// A region is zero when it is handed out, and aligned as cudaMalloc aligns (256 bytes). With guard
// zones (WEFT_CUDA_GUARD) it lies between two strips of a known pattern, which are read back and
// compared whenever a stream is waited for and when the region is freed, so that a write past a
// buffer is found in the step that did it. The plan divides regions into buffers; nothing is cached
// here.
#include "kernels/cuda/cuda_memory.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/mark.h"

enum { ZONE = 4096, PATTERN = 0xa5 };

enum region_kind { DEVICE_MEMORY, HOST_MEMORY, ADOPTED };

struct region {
    struct list link;
    enum region_kind kind;
    const struct memory_source *from; // of DEVICE_MEMORY
    char *base;                       // handed out
    size_t bytes, zone;
};

static struct region *note_region(struct device *d, enum region_kind kind, size_t bytes)
{
    struct region *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->kind = kind;
    r->bytes = bytes;
    r->zone = d->guard && kind == DEVICE_MEMORY ? ZONE : 0;
    list_init(&r->link);
    return r;
}

// ---- getting -----------------------------------------------------------------------------------

static int explain_no_memory(struct device *d, const struct memory_source *from, size_t bytes,
                             struct err *e)
{
    size_t left = 0, all = 0;
    const char *said = from->said ? from->said() : "";
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&left, &all);
    (void)cudaGetLastError();
    if (said[0] && left > bytes) // a library may fail of something else
        return err_set(e, ERR_DEVICE,
                       "cuda device %d: %s of %.1f MiB, while %.1f of %.1f MiB are free: %s",
                       d->ordinal, from->name, (double)bytes / 0x1p20, (double)left / 0x1p20,
                       (double)all / 0x1p20, said);
    return err_set(
        e, ERR_DEVICE,
        "cuda device %d is out of memory: %.1f MiB were asked for, %.1f of %.1f MiB are "
        "free (this process has %.1f MiB); another process may hold the rest (nvidia-smi)",
        d->ordinal, (double)bytes / 0x1p20, (double)left / 0x1p20, (double)all / 0x1p20,
        (double)d->allocated / 0x1p20);
}

// What `call` on memory of the host returned.
static int check_pinned(struct device *d, const char *call, cudaError_t rc, size_t bytes,
                        struct err *e)
{
    if (rc != cudaErrorMemoryAllocation)
        return cuda_check(d, NULL, call, rc, e);
    (void)cudaGetLastError();
    return err_set(e, ERR_DEVICE, "cuda device %d: the host has no %.1f MiB to pin for it",
                   d->ordinal, (double)bytes / 0x1p20);
}

static void free_region(struct device *d, struct region *r);

int memory_alloc_from(struct device *d, const struct memory_source *from, size_t bytes, void **out,
                      struct err *e)
{
    int rc = device_bind(d, e);
    if (rc)
        return rc;
    void *p = NULL;
    struct region *r = note_region(d, DEVICE_MEMORY, bytes ? bytes : 1);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory to note a region");
    r->from = from;
    cudaError_t got = from->take(&p, r->bytes + 2 * r->zone);
    rc = got == cudaErrorMemoryAllocation ? explain_no_memory(d, from, bytes, e)
                                          : cuda_check(d, NULL, from->name, got, e);
    if (rc) {
        free(r);
        return rc;
    }
    r->base = (char *)p + r->zone;
    d->allocated += r->bytes;
    list_append(&d->regions, &r->link);
    rc = CUDA(d, NULL, e, cudaMemset(r->base, 0, r->bytes));
    if (r->zone && !rc)
        rc = CUDA(d, NULL, e, cudaMemset(r->base - r->zone, PATTERN, r->zone));
    if (r->zone && !rc)
        rc = CUDA(d, NULL, e, cudaMemset(r->base + r->bytes, PATTERN, r->zone));
    if (!rc) // other streams may use it at once
        rc = CUDA(d, NULL, e, cudaDeviceSynchronize());
    if (rc)
        free_region(d, r);
    else
        *out = r->base;
    return rc;
}

static cudaError_t take_from_cuda(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes);
}

int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    static const struct memory_source cuda = {
        .name = "cudaMalloc", .take = take_from_cuda, .give_back = cudaFree};
    return memory_alloc_from(d, &cuda, bytes, out, e);
}

int memory_left(struct device *d, uint64_t *bytes, struct err *e)
{
    size_t left = 0, all = 0;
    int rc = device_bind(d, e);
    rc = rc ? rc : CUDA(d, NULL, e, cudaMemGetInfo(&left, &all));
    *bytes = left;
    return rc;
}

int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    int rc = device_bind(d, e);
    if (rc)
        return rc;
    void *p = NULL;
    struct region *r = note_region(d, HOST_MEMORY, bytes ? bytes : 1);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory to note a region");
    cudaError_t got = cudaHostAlloc(&p, r->bytes, cudaHostAllocPortable);
    rc = check_pinned(d, "cudaHostAlloc", got, bytes, e);
    if (rc) {
        free(r);
        return rc;
    }
    memset(p, 0, r->bytes);
    r->base = p;
    list_append(&d->regions, &r->link);
    *out = p;
    return 0;
}

int memory_adopt(struct device *d, void *p, size_t bytes, struct err *e)
{
    int rc = device_bind(d, e);
    if (rc || !bytes)
        return rc;
    struct region *r = note_region(d, ADOPTED, bytes);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory to note a region");
    cudaError_t got = cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    rc = check_pinned(d, "cudaHostRegister", got, bytes, e);
    if (rc) {
        free(r);
        return rc;
    }
    r->base = p;
    list_append(&d->regions, &r->link);
    return 0;
}

// ---- guard zones -------------------------------------------------------------------------------

static int check_zone(struct device *d, const struct region *r, const char *zone, struct err *e)
{
    static const char *const side[] = {"before", "behind"};
    unsigned char seen[ZONE];
    int rc = CUDA(d, NULL, e, cudaMemcpy(seen, zone, r->zone, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < r->zone && !rc; i++)
        if (seen[i] != PATTERN)
            rc = err_set(
                e, ERR_DEVICE, "cuda device %d: byte %zu %s a region of %zu bytes was written",
                d->ordinal, zone < r->base ? r->zone - i : i + 1, side[zone >= r->base], r->bytes);
    return rc;
}

int memory_check(struct device *d, struct err *e)
{
    int rc = 0;
    if (d->captures) // nothing may be waited for now: the next check comes after the capture
        return 0;
    list_for_each (it, &d->regions) {
        const struct region *r = list_entry(it, struct region, link);
        if (r->zone && !rc) {
            rc = check_zone(d, r, r->base - r->zone, e);
            rc = rc ? rc : check_zone(d, r, r->base + r->bytes, e);
        }
    }
    return rc;
}

// ---- giving back -------------------------------------------------------------------------------

// Errors here mean that the device is lost, and there is nothing left to do about them.
static void free_region(struct device *d, struct region *r)
{
    list_remove(&r->link);
    if (r->kind == DEVICE_MEMORY) {
        d->allocated -= r->bytes;
        (void)r->from->give_back(r->base - r->zone);
    } else if (r->kind == HOST_MEMORY) {
        marks_forget(r->base, r->bytes);
        (void)cudaFreeHost(r->base);
    } else {
        (void)cudaHostUnregister(r->base);
    }
    (void)cudaGetLastError();
    free(r);
}

void memory_free(struct device *d, void *p)
{
    struct err e = {0};
    if (!p || device_is_abandoned(d))
        return;
    device_bind(d, &e);
    list_for_each (it, &d->regions) {
        struct region *r = list_entry(it, struct region, link);
        if (r->base == p && r->kind != ADOPTED) {
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
