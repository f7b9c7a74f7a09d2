// SPDX-License-Identifier: Apache-2.0
// Memory between the ranks of one host: memfds without a name, sealed against resizing and passed
// over unix sockets, so that nothing is left when every rank is killed. A message on such a socket
// is one byte: 'w' wakes, 'P' and 'W' carry the sender's page and window. End of file means that
// the peer is gone; the kernel closes a killed process' sockets at once.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/page_size.h"
#include "common/base/system.h"
#include "worker/collective/world.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static int make_memfd(const char *name, size_t bytes, int *fd, struct err *e)
{
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return err_errno(e, ERR_IO, "cannot make shared memory");
    if (ftruncate(*fd, (off_t)bytes) || fcntl(*fd, F_ADD_SEALS, SEALS))
        return err_errno(e, ERR_NOMEM, "cannot make %zu bytes of shared memory", bytes);
    return 0;
}

void *shm_private(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int shm_page_new(struct world *w, int *fd, struct err *e)
{
    int rc = make_memfd("weft-page", sizeof *w->page, fd, e);
    if (rc)
        return rc;
    struct peer_page *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "cannot map a page");
    p->magic = PROGRESS_MAGIC;
    p->version = 1;
    p->rank = w->rank;
    p->pid = getpid();
    p->attempt = w->attempt;
    p->threads = w->threads;
    (void)sched_getaffinity(0, sizeof p->cpus, &p->cpus);
    w->page = p;
    w->peers[w->rank].page = p;
    w->peers[w->rank].local = true;
    return 0;
}

// A rank alone on its host has no one to share with: its window is anonymous, in huge pages.
static int make_private_window(struct world *w, size_t bytes, struct err *e)
{
    bytes = (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
    w->window = shm_private(bytes);
    if (!w->window)
        return err_set(e, ERR_NOMEM, "no memory for a window of %zu bytes", bytes);
    w->window_size = bytes;
    madvise(w->window, bytes, MADV_HUGEPAGE);
    return 0;
}

// The pages are allocated here: to run out of them must be an error now, not a SIGBUS later.
static int make_shared_window(struct world *w, size_t bytes, int *fd, struct err *e)
{
    bytes = (bytes + SMALL_PAGE - 1) & ~(size_t)(SMALL_PAGE - 1);
    int rc = make_memfd("weft-window", bytes, fd, e);
    if (rc)
        return rc;
    if (fallocate(*fd, 0, 0, (off_t)bytes))
        return err_errno(e, ERR_NOMEM, "no memory for a window of %zu bytes", bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "cannot map a window of %zu bytes", bytes);
    w->window = p;
    w->window_size = bytes;
    return 0;
}

int shm_window(struct world *w, size_t bytes, int *fd, struct err *e)
{
    int here = 0;
    for (int i = 0; i < w->ranks; i++)
        here += w->peers[i].local;
    int rc = here > 1 ? make_shared_window(w, bytes, fd, e) : make_private_window(w, bytes, e);
    w->peers[w->rank].window = w->window;
    w->peers[w->rank].window_size = w->window_size;
    return rc;
}

int shm_send(struct peer *p, char type, int fd, struct err *e)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } u = {.room = {0}};
    struct iovec part = {&type, 1};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof u.room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(p->fd, &m, MSG_NOSIGNAL) != 1)
        return err_errno(e, ERR_PEER, "cannot pass memory to rank %d", p->rank);
    return 0;
}

// Maps what a peer passed. A memory that could still shrink would let it kill us with SIGBUS.
static void *map_passed(int fd, size_t least, size_t *bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) || (size_t)st.st_size < least)
        return NULL;
    *bytes = (size_t)st.st_size;
    int flags = MAP_SHARED | (least == 1 ? MAP_POPULATE : 0);
    void *p = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void lose_peer(struct peer *p, const char *why)
{
    p->dead = true;
    snprintf(p->why, sizeof p->why, "%s", why);
}

static void map_page(const struct world *w, struct peer *p, int fd)
{
    size_t bytes;
    struct peer_page *page = p->page ? NULL : map_passed(fd, sizeof *page, &bytes);
    if (page && (page->magic != PROGRESS_MAGIC || page->rank != p->rank ||
                 page->attempt != w->attempt || bytes != sizeof *page)) {
        munmap(page, bytes);
        page = NULL;
    }
    if (page)
        p->page = page;
    else
        lose_peer(p, "its page cannot be mapped");
}

static void map_window(struct peer *p, int fd)
{
    if (!p->window)
        p->window = map_passed(fd, 1, &p->window_size);
    if (!p->window)
        lose_peer(p, "its window cannot be mapped");
}

static int find_passed_fd(struct msghdr *m)
{
    int fd = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

void shm_read(struct world *w, struct peer *p)
{
    while (!p->dead) {
        union {
            char room[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } u;
        char type = 0;
        struct iovec part = {&type, 1};
        struct msghdr m = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = u.room,
                           .msg_controllen = sizeof u.room};
        ssize_t n = recvmsg(p->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            p->dead = true;
            return;
        }
        int fd = find_passed_fd(&m);
        if (type == 'P' && fd >= 0)
            map_page(w, p, fd);
        else if (type == 'W' && fd >= 0)
            map_window(p, fd);
        system_close(&fd);
    }
}
