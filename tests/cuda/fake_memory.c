// SPDX-License-Identifier: Apache-2.0
// Memory of the fake devices. See fake.h.
//
// Device memory is mapped in a range of its own, far from everything the host has, a closed page
// before and behind each allocation, the rest of its last page filled with a pattern that is
// compared when it is freed. The range is closed (PROT_NONE) but while queued work runs: a host
// that touches it dies with the address. Pinned memory is the host's own, noted.
#include "tests/cuda/fake.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(p, n)   ((void)(p), (void)(n))
#define __asan_unpoison_memory_region(p, n) ((void)(p), (void)(n))
#endif

enum { PAGE = 4096, PATTERN = 0x5a, MOST = 65536, CHEAP = 1 << 19 };
// Where user memory never lies by itself, below and above; of what the thread sanitizer lets a program
// have, what lies below where Linux loads one.
#ifdef __SANITIZE_THREAD__
#define RANGE_BEGIN ((char *)0x550000000000)
#define RANGE_END   ((char *)0x555000000000)
#else
#define RANGE_BEGIN ((char *)0x200000000000)
#define RANGE_END   ((char *)0x300000000000)
#endif

struct block {
    char *base;
    size_t bytes, mapped; // asked for; in pages
    int device;
    enum fake_where where; // FAKE_DEVICE or FAKE_PINNED
};

static struct {
    struct block block[MOST];
    int blocks;
    char *next;
    int open;            // calls that nest
    bool closed;         // to everybody
    size_t mapped, left; // in all; chances to close that were left out, in bytes
    size_t used[64];
} memory = {.next = RANGE_BEGIN, .closed = true};

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

// ---- open and closed ---------------------------------------------------------------------------

static void touched(int signal, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)context;
    if (at >= RANGE_BEGIN && at < RANGE_END) {
        static const char say[] = "fake cuda: the host touched device memory, or a kernel memory "
                                  "outside its allocations\n";
        (void)!write(STDERR_FILENO, say, sizeof say - 1);
    }
    (void)sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

static void watch(void)
{
    struct sigaction old, mine = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    // Whoever has a handler of his own (a sanitizer, cmocka) says enough.
    if (!sigaction(SIGSEGV, NULL, &old) && old.sa_handler == SIG_DFL)
        sigaction(SIGSEGV, &mine, NULL);
}

static void protect(int how)
{
    for (int i = 0; i < memory.blocks; i++)
        if (memory.block[i].where == FAKE_DEVICE)
            mprotect(memory.block[i].base, memory.block[i].mapped, how);
}

void fake_memory_open(void)
{
    if (!memory.open++ && memory.closed)
        protect(PROT_READ | PROT_WRITE);
    memory.closed = false;
}

void fake_memory_close(void)
{
    if (--memory.open || (memory.left += CHEAP) < memory.mapped)
        return;
    protect(PROT_NONE);
    memory.closed = true;
    memory.left = 0;
}

void fake_memory_hide(bool hide)
{
    protect(hide ? PROT_NONE : PROT_READ | PROT_WRITE);
}

// ---- which is what -----------------------------------------------------------------------------

static struct block *holds(const void *p)
{
    const char *at = p;
    for (int i = 0; i < memory.blocks; i++) {
        struct block *b = &memory.block[i];
        if (at >= b->base && at < b->base + (b->bytes ? b->bytes : 1))
            return b;
    }
    return NULL;
}

bool fake_memory_where(const void *p, size_t bytes, enum fake_where *where)
{
    const struct block *b = holds(p);
    *where = b ? b->where : FAKE_PAGEABLE;
    if (b)
        return (const char *)p + bytes <= b->base + b->bytes;
    return (const char *)p < RANGE_BEGIN || (const char *)p >= RANGE_END;
}

const void *fake_memory_stray(const void *args, size_t bytes)
{
    for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
        char *p;
        memcpy(&p, (const char *)args + at, sizeof p);
        bool near = (uintptr_t)p >= 0x550000000000 && (uintptr_t)p < 0x800000000000;
        bool ours = p >= RANGE_BEGIN && p < RANGE_END;
        if ((near || ours) && !holds(p) && !holds(p - 1))
            return p;
    }
    return NULL;
}

// ---- what it holds -----------------------------------------------------------------------------

// The next block of device memory from *i on; null: there are no more.
static const struct block *next_device(int *i)
{
    while (*i < memory.blocks)
        if (memory.block[(*i)++].where == FAKE_DEVICE)
            return &memory.block[*i - 1];
    return NULL;
}

size_t fake_memory_bytes(void)
{
    size_t bytes = 0;
    const struct block *b;
    for (int i = 0; (b = next_device(&i));)
        bytes += b->bytes;
    return bytes;
}

char *fake_memory_keep(void)
{
    size_t at = 0;
    const struct block *b;
    char *kept = malloc(fake_memory_bytes() + 1);
    if (!kept)
        abort();
    for (int i = 0; (b = next_device(&i)); at += b->bytes)
        memcpy(kept + at, b->base, b->bytes);
    return kept;
}

void fake_memory_restore(const char *kept)
{
    const struct block *b;
    for (int i = 0; (b = next_device(&i)); kept += b->bytes)
        memcpy(b->base, kept, b->bytes);
}

const void *fake_memory_unlike(const char *kept)
{
    const struct block *b;
    for (int i = 0; (b = next_device(&i)); kept += b->bytes)
        for (size_t at = 0; memcmp(b->base, kept, b->bytes) != 0 && at < b->bytes; at++)
            if (b->base[at] != kept[at])
                return b->base + at;
    return NULL;
}

// ---- getting and giving back -------------------------------------------------------------------

static size_t room_of(void)
{
    long bytes = 8L << 30;
    fake_scene("memory", &bytes);
    return (size_t)bytes;
}

static size_t left_of(int device)
{
    long taken = 0; // by other processes
    fake_scene("taken", &taken);
    const size_t used = memory.used[device] + (size_t)taken;
    return used < room_of() ? room_of() - used : 0;
}

bool fake_memory_take(int device, size_t bytes)
{
    if (bytes > left_of(device))
        return false;
    memory.used[device] += bytes;
    return true;
}

void fake_memory_give_back(int device, size_t bytes)
{
    memory.used[device] -= bytes;
}

static bool asked_to_fail(void)
{
    static long count;
    long n = 0;
    return fake_scene("oom", &n) && ++count == n;
}

static void broken(const char *what, const struct block *b)
{
    fprintf(stderr, "fake cuda: %s %p of %zu bytes\n", what, (void *)b->base, b->bytes);
    abort();
}

// The rest of the last page: who wrote it?
static void check_rest(const struct block *b)
{
    __asan_unpoison_memory_region(b->base, b->mapped);
    for (size_t i = b->bytes; i < b->mapped; i++)
        if (b->base[i] != PATTERN)
            broken("something wrote behind the allocation", b);
}

static struct block *note(void *base, size_t bytes, enum fake_where where)
{
    if (memory.blocks == MOST) {
        fputs("fake cuda: too many allocations\n", stderr);
        abort();
    }
    struct block *b = &memory.block[memory.blocks++];
    *b = (struct block){base, bytes, pages(bytes), fake_device(), where};
    return b;
}

enum { FILLED = 4 << 20 };

// Makes every byte 0xff: not zero, that is nobody's promise. Of a large block, as a device's scratch,
// only what somebody touches costs a page: it is mapped from a file of such bytes, to be copied on
// writing.
static void fill(char *base, size_t bytes)
{
    static int file = -1;
    const size_t large = bytes / FILLED * FILLED;
    memset(base + large, 0xff, bytes - large);
    if (large && file < 0) {
        char *all = malloc(FILLED);
        file = memfd_create("weft-filled", MFD_CLOEXEC);
        if (!all || file < 0)
            abort();
        memset(all, 0xff, FILLED);
        if (write(file, all, FILLED) != FILLED)
            abort();
        free(all);
    }
    for (size_t at = 0; at < large; at += FILLED)
        if (mmap(base + at, FILLED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) ==
            MAP_FAILED)
            abort();
}

// Zeros of a device's large scratch are fresh pages, which cost nothing before somebody touches them.
void fake_memory_fill(char *to, int with, size_t bytes)
{
    const struct block *b = holds(to);
    char *first = (char *)pages((uintptr_t)to), *end = to + bytes;
    end -= (uintptr_t)end % PAGE;
    bool fresh = with == 0 && bytes >= FILLED && b && b->where == FAKE_DEVICE &&
                 mmap(first, (size_t)(end - first), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == first;
    if (fresh) {
        memset(to, 0, (size_t)(first - to));
        memset(end, 0, (size_t)(to + bytes - end));
    } else
        memset(to, with, bytes);
}

static cudaError_t allocate(void **out, size_t bytes)
{
    size_t map = pages(bytes ? bytes : 1);
    watch();
    if (asked_to_fail() || map > left_of(fake_device()))
        return cudaErrorMemoryAllocation;
    char *at = mmap(memory.next, map + 2 * (size_t)PAGE, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memory.next += map + 2 * (size_t)PAGE;
    struct block *b = note(at + PAGE, bytes, FAKE_DEVICE);
    b->mapped = map;
    mprotect(b->base, map, PROT_READ | PROT_WRITE);
    fill(b->base, bytes);
    memset(b->base + bytes, PATTERN, map - bytes);
    __asan_poison_memory_region(b->base + bytes, map - bytes);
    if (memory.closed)
        mprotect(b->base, map, PROT_NONE);
    memory.used[b->device] += map;
    memory.mapped += map;
    *out = b->base;
    return cudaSuccess;
}

static cudaError_t release(void *p, enum fake_where where)
{
    struct block *b = holds(p);
    if (!p)
        return cudaSuccess;
    if (!b || b->base != p || b->where != where)
        return cudaErrorInvalidValue;
    if (where == FAKE_DEVICE) {
        mprotect(b->base, b->mapped, PROT_READ | PROT_WRITE);
        check_rest(b);
        munmap(b->base - PAGE, b->mapped + 2 * (size_t)PAGE);
        memory.used[b->device] -= b->mapped;
        memory.mapped -= b->mapped;
    }
    *b = memory.block[--memory.blocks];
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    fake_lock();
    cudaError_t rc = fake_failed();
    rc = rc ? rc : fake_refused_in_capture();
    rc = rc ? rc : allocate(out, bytes);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaFree(void *p)
{
    fake_lock();
    cudaError_t rc = fake_failed();
    rc = rc ? rc : fake_refused_in_capture();
    if (!rc)
        fake_finish_all(); // a real one waits for the device
    rc = rc ? rc : release(p, FAKE_DEVICE);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    fake_lock();
    cudaError_t rc = fake_failed();
    rc = rc ? rc : fake_refused_in_capture();
    void *p = rc ? NULL : aligned_alloc(PAGE, pages(bytes ? bytes : 1));
    if (!rc && !p)
        rc = cudaErrorMemoryAllocation;
    if (!rc)
        *out = note(p, bytes, FAKE_PINNED)->base;
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaFreeHost(void *p)
{
    fake_lock();
    cudaError_t rc = fake_failed();
    if (!rc)
        fake_finish_all();
    rc = rc ? rc : release(p, FAKE_PINNED);
    if (!rc)
        free(p);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    fake_lock();
    cudaError_t rc = fake_failed();
    rc = rc ? rc : fake_refused_in_capture();
    if (!rc && holds(p))
        rc = cudaErrorHostMemoryAlreadyRegistered;
    if (!rc)
        note(p, bytes, FAKE_PINNED);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaHostUnregister(void *p)
{
    fake_lock();
    cudaError_t rc = fake_failed();
    if (!rc)
        fake_finish_all();
    rc = rc ? rc : release(p, FAKE_PINNED);
    if (rc == cudaErrorInvalidValue)
        rc = cudaErrorHostMemoryNotRegistered;
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    fake_lock();
    *all = room_of();
    *left = left_of(fake_device());
    fake_unlock();
    return fake_error(fake_failed());
}
