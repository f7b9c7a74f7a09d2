// SPDX-License-Identifier: Apache-2.0
// See child.h.
#include "common/base/child.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/base/clock.h"

enum { DEATH_S = 2 }; // what SIGKILL may take

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
