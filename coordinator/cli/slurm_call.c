// SPDX-License-Identifier: Apache-2.0
// Calls of Slurm's programs; see slurm_call.h.
#include "coordinator/cli/slurm_call.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/system.h"

#define HEAR_NS (100 * CLOCK_MS)
#define END_NS  (5 * CLOCK_S)
enum { SLURM_ANSWER_MAX = 65536 };

static int open_input(const char *text, int *fd, struct err *e)
{
    size_t n = strlen(text);
    *fd = memfd_create("weft-input", MFD_CLOEXEC);
    if (*fd < 0 || write(*fd, text, n) != (ssize_t)n || lseek(*fd, 0, SEEK_SET))
        return err_errno(e, ERR_IO, "cannot hold %zu bytes of input", n);
    return 0;
}

// Reads until its end, as far as it is waited for. Returns whether that came; *signal: the one that was
// passed on, 0: none.
static bool hear(const struct slurm_call *c, int from, pid_t pid, struct buf *out, int *signal)
{
    int64_t until = clock_mono_ns() + c->wait_ns;
    bool heard = !c->heard;
    *signal = 0;
    for (;;) {
        struct signalfd_siginfo s;
        int64_t now = clock_mono_ns(),
                look = c->heard && now + HEAR_NS < until ? now + HEAR_NS : until;
        bool whole = child_read(from, SLURM_ANSWER_MAX, look, out);
        if (!heard && (whole ? out->len > 0 : strchr(buf_str(out), '\n') != NULL)) {
            heard = true;
            until = INT64_MAX;
            c->heard(c->ctx, buf_str(out));
        }
        if (whole || out->len > SLURM_ANSWER_MAX || clock_mono_ns() >= until)
            return whole;
        if (c->heard && read(c->signals, &s, sizeof s) == (ssize_t)sizeof s) {
            *signal = (int)s.ssi_signo;
            (void)kill(-pid, *signal);
            until = clock_mono_ns() + END_NS;
        }
    }
}

static int take_answer(const struct slurm_call *c, int from, pid_t pid, struct buf *out,
                       struct err *e)
{
    int status = 0, signal;
    bool whole = hear(c, from, pid, out, &signal);
    bool ended = child_end(pid, whole ? CLOCK_S : 0, &status);
    if (out->len > SLURM_ANSWER_MAX)
        return 0;
    if (signal)
        return err_set(e, ERR_ABORTED, "%s was interrupted", c->argv[0]);
    if (!whole || !ended)
        return err_set(e, ERR_TIMEOUT, "%s did not answer within %lld s", c->argv[0],
                       (long long)(c->wait_ns / CLOCK_S));
    if (!status)
        return 0;
    return err_set(e, ERR_REFUSED, "%s ended with %d", c->argv[0],
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

int slurm_call(const struct slurm_call *c, struct buf *out, struct err *e)
{
    char path[PATH_MAX];
    int p[2] = {-1, -1}, in = -1, null = -1;
    pid_t pid;
    int rc = system_find_program(c->argv[0], path, sizeof path, NULL);
    if (rc)
        return err_set(e, ERR_NOTFOUND, "%s is not in PATH", c->argv[0]);
    rc = c->input ? open_input(c->input, &in, e) : 0;
    if (!rc && (pipe2(p, O_CLOEXEC) || (null = open("/dev/null", O_WRONLY | O_CLOEXEC)) < 0))
        rc = err_errno(e, ERR_IO, "cannot make a pipe");
    if (!rc) {
        struct child_file files[4];
        int n = 0;
        if (in >= 0)
            files[n++] = (struct child_file){in, 0};
        files[n++] = (struct child_file){p[1], 1};
        files[n++] = (struct child_file){c->quiet ? null : 2, 2};
        files[n] = (struct child_file){-1, -1};
        const struct child_start start = {.program = path, .argv = c->argv, .files = files};
        bool failed = child_start(&start, &pid);
        close(p[1]);
        p[1] = -1;
        rc = failed ? err_errno(e, ERR_IO, "cannot start %s", path)
                    : take_answer(c, p[0], pid, out, e);
    }
    for (int i = 0; i < 2; i++)
        system_close(&p[i]);
    system_close(&in);
    system_close(&null);
    return rc;
}
