// SPDX-License-Identifier: Apache-2.0
// Progress pages; see page.h.
#include "common/attempt/page.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PREFIX "page-"

void page_name(int rank, char out[PAGE_NAME_MAX])
{
    snprintf(out, PAGE_NAME_MAX, PREFIX "%04d", rank);
}

bool page_is_name(const char *name)
{
    return !strncmp(name, PREFIX, strlen(PREFIX));
}

void page_path(const char *dir, int rank, char *out, size_t size)
{
    char name[PAGE_NAME_MAX];
    page_name(rank, name);
    snprintf(out, size, "%s/%s", dir, name);
}

int page_create(const char *path, int rank, struct progress_page **out, struct err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot make the progress page %s", path);
    int rc = 0;
    void *p = MAP_FAILED;
    if (ftruncate(fd, sizeof(struct progress_page)))
        rc = err_errno(e, ERR_IO, "cannot size the progress page %s", path);
    else if ((p = mmap(NULL, sizeof(struct progress_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       0)) == MAP_FAILED)
        rc = err_errno(e, ERR_IO, "cannot map the progress page %s", path);
    close(fd);
    if (rc)
        return rc;
    struct progress_page *page = p;
    page->version = 1;
    page->rank = rank;
    page->pid = (int32_t)getpid();
    page_beat(page);
    atomic_thread_fence(memory_order_release);
    page->magic = PROGRESS_MAGIC;
    *out = page;
    return 0;
}

const struct progress_page *page_open(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct stat st;
    void *p = MAP_FAILED;
    if (!fstat(fd, &st) && st.st_size >= (off_t)sizeof(struct progress_page))
        p = mmap(NULL, sizeof(struct progress_page), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return NULL;
    const struct progress_page *page = p;
    if (page->magic == PROGRESS_MAGIC && page->version == 1)
        return page;
    munmap(p, sizeof(struct progress_page));
    return NULL;
}

void page_close(const struct progress_page *p)
{
    union {
        const struct progress_page *page;
        void *mem;
    } u = {.page = p};
    if (p)
        munmap(u.mem, sizeof *p);
}

void page_beat(struct progress_page *p)
{
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
}

void page_state(struct progress_page *p, enum rank_state state)
{
    atomic_store_explicit(&p->state, (int)state, memory_order_relaxed);
    page_beat(p);
}

void page_alive(struct progress_page *p)
{
    atomic_fetch_add_explicit(&p->ops, 1, memory_order_relaxed);
    page_beat(p);
}

void page_step(struct progress_page *p, int64_t step)
{
    atomic_store_explicit(&p->step, step, memory_order_relaxed);
    page_beat(p);
}

void page_phase(struct progress_page *p, int phase, int microbatch)
{
    atomic_store_explicit(&p->phase, phase, memory_order_relaxed);
    atomic_store_explicit(&p->microbatch, microbatch, memory_order_relaxed);
    page_beat(p);
}

// The collective's name is a hint for people, written without order by its contract: a torn one is
// made printable and does no harm.
__attribute__((no_sanitize("thread"))) static void read_hint(const volatile char *from, char *to,
                                                             size_t size)
{
    for (size_t i = 0; i + 1 < size && from[i]; i++) {
        char c = from[i];
        to[i] = c < ' ' || c > '~' ? '?' : c;
    }
}

void page_read(const struct progress_page *p, struct page_view *out)
{
    memset(out, 0, sizeof *out);
    out->rank = p->rank;
#define LOAD(field) out->field = atomic_load_explicit(&p->field, memory_order_relaxed)
    LOAD(step);
    LOAD(phase);
    LOAD(microbatch);
    LOAD(state);
    LOAD(ops);
    LOAD(collective_entered);
    LOAD(collective_left);
    LOAD(heartbeat_ns);
#undef LOAD
    uint64_t awaited = atomic_load_explicit(&p->awaited, memory_order_relaxed);
    out->awaits = (int)(awaited >> 48);
    out->awaits_entered = awaited & (((uint64_t)1 << 48) - 1);
    read_hint(p->collective_text, out->collective_text, sizeof out->collective_text);
}

int page_view_equal(const struct page_view *a, const struct page_view *b)
{
    return a->step == b->step && a->phase == b->phase && a->microbatch == b->microbatch &&
           a->state == b->state && a->ops == b->ops &&
           a->collective_entered == b->collective_entered &&
           a->collective_left == b->collective_left && a->heartbeat_ns == b->heartbeat_ns;
}

int page_view_same(const struct page_view *a, const struct page_view *b)
{
    return page_view_equal(a, b) && a->awaits == b->awaits &&
           a->awaits_entered == b->awaits_entered && a->stopped == b->stopped;
}

void page_view_text(const struct page_view *v, char *out, size_t size)
{
    static const char *const phases[] = {"forward", "backward", "weights", "update"};
    enum { UPDATE = sizeof phases / sizeof *phases - 1 };
    char phase[40] = "", collective[120] = "";
    bool known = v->state == RANK_RUNNING && v->phase >= 0 && v->phase <= UPDATE;
    if (known && v->phase == UPDATE)
        snprintf(phase, sizeof phase, ", %s", phases[v->phase]);
    else if (known)
        snprintf(phase, sizeof phase, ", %s of microbatch %d", phases[v->phase], v->microbatch);
    if (v->collective_entered)
        snprintf(collective, sizeof collective, ", %s collective %llu (%s)",
                 v->collective_entered > v->collective_left ? "in" : "after",
                 (unsigned long long)v->collective_entered, v->collective_text);
    else if (v->step <= 0) // a rank that steps without any is the only one
        snprintf(collective, sizeof collective, ", before the first collective");
    snprintf(out, size, "%s, step %lld%s%s", rank_state_text(v->state), (long long)v->step, phase,
             collective);
}
