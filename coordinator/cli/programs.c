// SPDX-License-Identifier: Apache-2.0
// Finding and starting our other programs; see programs.h.
#include "coordinator/cli/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

int find_program(const char *name, char *out, size_t size, struct err *e)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        *strrchr(self, '/') = 0;
        if ((size_t)snprintf(out, size, "%s/%s", self, name) < size && access(out, X_OK) == 0)
            return 0;
    }
    if (search_path(name, out, size) == 0)
        return 0;
    return err_set(e, ERR_NOTFOUND, "%s is neither beside weft (%s) nor in PATH", name, self);
}

int start_program(char *const *argv, int out_fd, const int *pass, struct err *e)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    pid_t pid;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (out_fd >= 0) {
        posix_spawn_file_actions_adddup2(&fa, out_fd, 1);
        posix_spawn_file_actions_adddup2(&fa, out_fd, 2);
    }
    for (; pass && *pass >= 0; pass++) // a dup onto itself clears close-on-exec, in the child alone
        posix_spawn_file_actions_adddup2(&fa, *pass, *pass);
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setsigdefault(&at, &all);
    posix_spawnattr_setpgroup(&at, 0); // so that Ctrl-C reaches us alone
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                      POSIX_SPAWN_SETPGROUP);
    int rc = posix_spawn(&pid, argv[0], &fa, &at, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    if (!rc)
        return pid;
    errno = rc;
    err_errno(e, ERR_IO, "cannot start %s", argv[0]);
    return -1;
}
