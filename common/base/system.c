// SPDX-License-Identifier: Apache-2.0
// A program and the system; see system.h.
#include "common/base/system.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

void system_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int search_path(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    for (const char *s = path ? path : "/usr/bin:/bin"; *s;) {
        size_t n = strcspn(s, ":");
        if (n && (size_t)snprintf(out, size, "%.*s/%s", (int)n, s, name) < size &&
            access(out, X_OK) == 0)
            return 0;
        s += n + (s[n] == ':');
    }
    return ERR_NOTFOUND;
}

int system_find_program(const char *name, char *out, size_t size, struct err *e)
{
    char self[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        *strrchr(self, '/') = 0;
        if ((size_t)snprintf(out, size, "%s/%s", self, name) < size && access(out, X_OK) == 0)
            return 0;
    }
    if (search_path(name, out, size) == 0)
        return 0;
    return err_set(e, ERR_NOTFOUND, "%s is neither beside this program (%s) nor in PATH", name,
                   self);
}

int system_read_signals(const int *which, int *fd, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    for (; *which; which++)
        sigaddset(&set, *which);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    *fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *fd < 0 ? err_errno(e, ERR_INTERNAL, "cannot read signals") : 0;
}

void system_raise_limits(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == l.rlim_max)
        return;
    l.rlim_cur = l.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}
