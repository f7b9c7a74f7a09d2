// SPDX-License-Identifier: Apache-2.0
// See child.h.
#include "common/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/deadline.h"

enum { DEATH_S = 2 }; // what SIGKILL may take
enum { PIECE = 4096 };

// 0, or an errno.
static int add_files(posix_spawn_file_actions_t *to, const struct child_file *file)
{
    bool input = false;
    int failed = 0;
    for (; file && file->ours >= 0 && !failed; file++) { // one that keeps its number stops being
        failed = posix_spawn_file_actions_adddup2(to, file->ours, file->its); // close-on-exec
        input |= file->its == 0;
    }
    if (!input && !failed)
        failed = posix_spawn_file_actions_addopen(to, 0, "/dev/null", O_RDONLY, 0);
    return failed;
}

int child_start(const struct child_start *c, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    int failed = add_files(&files, c->files);
    posix_spawnattr_setsigmask(&attributes, c->blocked ? c->blocked : &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                              POSIX_SPAWN_SETPGROUP);
    if (!failed)
        failed = posix_spawn(pid, c->program, &files, &attributes, c->argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (!failed)
        return 0;
    *pid = 0;
    errno = failed;
    return -1;
}

bool child_is_stopped(pid_t pid)
{
    siginfo_t info = {0};
    return !waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) && info.si_pid == pid;
}

bool child_read(int fd, size_t most, int64_t until_ns, struct buf *out)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t now = clock_mono_ns();
        if (now > until_ns || out->len > most)
            return false;
        if (poll(&p, 1, deadline_wait_ms(until_ns, now)) <= 0)
            continue;
        buf_reserve(out, PIECE);
        ssize_t n = read(fd, out->data + out->len, PIECE - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        out->len += (size_t)n;
        out->data[out->len] = 0;
    }
}

static bool reap_until(pid_t pid, int64_t until_ns, int *status)
{
    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return true;
        if (clock_mono_ns() >= until_ns)
            return false;
        clock_sleep_ms(1);
    }
}

bool child_end(pid_t pid, int64_t grace_ns, int *status)
{
    *status = 0;
    if (reap_until(pid, clock_mono_ns() + grace_ns, status))
        return true;
    (void)kill(pid, SIGKILL);
    return reap_until(pid, clock_mono_ns() + DEATH_S * CLOCK_S, status);
}
