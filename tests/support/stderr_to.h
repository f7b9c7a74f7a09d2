// SPDX-License-Identifier: Apache-2.0
// Standard error, where the log goes, led elsewhere for a while.
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

// Leads it to a descriptor, which stays the caller's. Returns what lead_back() needs to undo it.
static inline int lead_stderr(int fd)
{
    int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (before < 0 || dup2(fd, STDERR_FILENO) < 0)
        abort();
    return before;
}

static inline void lead_back(int before)
{
    if (dup2(before, STDERR_FILENO) < 0)
        abort();
    close(before);
}
