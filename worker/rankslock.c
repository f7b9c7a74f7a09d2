// SPDX-License-Identifier: Apache-2.0
// The proof by a lock. See rankslock.h. A pid may have been given to somebody else since it was
// recorded: only a process with the recorded start time is killed, through a pidfd, so that it
// cannot be exchanged in between.
#include "worker/rankslock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/system.h"

enum { RETRY_MS = 10, RECORD_MAX = 1 << 20 };

static int open_lock(const char *path, struct err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        (void)err_errno(e, ERR_IO, "cannot open %s", path);
    return fd;
}

int rankslock_share(const char *path, struct err *e)
{
    int fd = open_lock(path, e);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB)) {
        (void)err_errno(e, ERR_IO, "cannot lock %s", path);
        close(fd);
        fd = -1;
    }
    return fd;
}

// Field 22 of /proc/PID/stat: when the process started, in ticks since boot.
static bool read_start_time(pid_t pid, unsigned long long *out)
{
    char dir[64], text[1024];
    int field = 2;
    snprintf(dir, sizeof dir, "/proc/%d", (int)pid);
    (void)folder_read(dir, "stat", text, sizeof text, NULL);
    const char *p = strrchr(text, ')'); // the name before it may hold anything
    while (p && field < 22) {
        p = strchr(p + 1, ' ');
        field++;
    }
    if (!p)
        return false;
    *out = strtoull(p, NULL, 10);
    return true;
}

int rankslock_record(const char *path, pid_t pid, bool alone, struct err *e)
{
    char line[64];
    unsigned long long start;
    if (!read_start_time(pid, &start))
        return 0; // gone already
    int n = snprintf(line, sizeof line, "%d %llu\n", (int)pid, start);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | (alone ? O_TRUNC : 0)), rc = 0;
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        rc = err_errno(e, ERR_IO, "cannot write %s", path);
    system_close(&fd);
    return rc;
}

static void kill_recorded(int fd, struct buf *seen)
{
    struct buf b = {0};
    buf_reserve(&b, RECORD_MAX + 1);
    struct stat st = {0};
    (void)fstat(fd, &st);
    off_t at = st.st_size > RECORD_MAX ? st.st_size - RECORD_MAX : 0; // the newest
    ssize_t n = pread(fd, b.data, RECORD_MAX, at);
    b.data[n > 0 ? n : 0] = 0;
    for (const char *p = b.data; *p;) {
        unsigned long long start, now;
        int pid;
        if (sscanf(p, "%d %llu", &pid, &start) == 2 && pid > 1) {
            int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
            if (pidfd >= 0 && read_start_time(pid, &now) && now == start) {
                (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
                buf_printf(seen, " %d", pid);
            }
            system_close(&pidfd);
        }
        p = strchrnul(p, '\n');
        p += *p == '\n';
    }
    buf_clear(&b);
}

int rankslock_prove(const char *path, int64_t wait_ns, struct err *e)
{
    int64_t until = clock_mono_ns() + wait_ns;
    struct buf seen = {0};
    int rc = 0, fd = open_lock(path, e);
    if (fd < 0)
        return ERR_IO;
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            rc = err_errno(e, ERR_IO, "cannot lock %s", path);
            break;
        }
        buf_reset(&seen);
        kill_recorded(fd, &seen);
        if (clock_mono_ns() > until) {
            rc = err_set(e, ERR_TIMEOUT, "%s is held by ranks that were killed and do not end:%s",
                         path, *buf_str(&seen) ? buf_str(&seen) : " of unknown pids");
            break;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (!rc && ftruncate(fd, 0))
        rc = err_errno(e, ERR_IO, "cannot empty %s", path);
    buf_clear(&seen);
    close(fd);
    return rc;
}
