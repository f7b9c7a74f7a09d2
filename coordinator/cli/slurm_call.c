// SPDX-License-Identifier: Apache-2.0
// Calls of Slurm's programs; see slurm_call.h.
#include "coordinator/cli/slurm_call.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/system.h"

enum { SLURM_ANSWER_MAX = 65536 };

static int open_input(const char *text, int *fd, struct err *e)
{
    size_t n = strlen(text);
    *fd = memfd_create("weft-input", MFD_CLOEXEC);
    if (*fd < 0 || write(*fd, text, n) != (ssize_t)n || lseek(*fd, 0, SEEK_SET))
        return err_errno(e, ERR_IO, "cannot hold %zu bytes of input", n);
    return 0;
}

static int take_answer(const struct slurm_call *c, int from, pid_t pid, struct buf *out,
                       struct err *e)
{
    int status = 0;
    bool whole = child_read(from, SLURM_ANSWER_MAX, clock_mono_ns() + c->wait_ns, out);
    bool ended = child_end(pid, whole ? CLOCK_S : 0, &status);
    if (out->len > SLURM_ANSWER_MAX)
        return 0;
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
        if (p[i] >= 0)
            close(p[i]);
    if (in >= 0)
        close(in);
    if (null >= 0)
        close(null);
    return rc;
}
