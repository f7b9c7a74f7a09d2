// SPDX-License-Identifier: Apache-2.0
// A process that plans; see planner_process.h.
#include "coordinator/planner_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

enum { SOCKET_FD = 0, JOB_FD = 1 };

// What goes down the socket. The two texts lie in the memory file, one behind the other.
struct request_sizes {
    uint64_t base_len, text_len;
};

// ---- the coordinator's side ----

static int spawn_process(struct planner_process *p, const char *program, int socket, struct err *e)
{
    char memory[32], *argv[] = {strdup(program), strdup("--planner"), memory, NULL};
    const struct child_file files[] = {{socket, SOCKET_FD}, {p->job, JOB_FD}, {-1, -1}};
    snprintf(memory, sizeof memory, "%lld", (long long)p->memory);
    int rc = child_start(&(struct child_start){.program = program, .argv = argv, .files = files},
                         &p->pid);
    free(argv[0]);
    free(argv[1]);
    return rc ? err_errno(e, ERR_INTERNAL, "cannot start %s to plan the job", program) : 0;
}

int planner_process_start(struct planner_process *p, const char *program, int64_t memory,
                          struct err *e)
{
    int pair[2];
    *p = (struct planner_process){.memory = memory};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return err_errno(e, ERR_INTERNAL, "cannot make a socket to plan the job");
    p->socket = pair[0];
    p->job = memfd_create("weft-job", MFD_CLOEXEC);
    int rc = p->job < 0 ? err_errno(e, ERR_INTERNAL, "cannot make memory to plan the job")
                        : spawn_process(p, program, pair[1], e);
    close(pair[1]);
    if (!rc)
        return 0;
    close(p->socket);
    if (p->job >= 0)
        close(p->job);
    return rc;
}

static bool write_whole(int fd, const char *text, size_t len, off_t at)
{
    return pwrite(fd, text, len, at) == (ssize_t)len;
}

int planner_process_give(struct planner_process *p, const Weft__V1__SubmitRequest *job,
                         struct err *e)
{
    const struct request_sizes o = {strlen(job->base_dir), strlen(job->resolved)};
    if (!ftruncate(p->job, 0) && write_whole(p->job, job->base_dir, o.base_len, 0) &&
        write_whole(p->job, job->resolved, o.text_len, (off_t)o.base_len) &&
        send(p->socket, &o, sizeof o, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof o)
        return 0;
    return err_errno(e, ERR_INTERNAL, "cannot give the job to the process that plans");
}

// Reaps it, dead or alive, and returns how it ended.
static int reap_process(struct planner_process *p, struct rusage *used)
{
    int status = 0;
    kill(p->pid, SIGKILL);
    while (wait4(p->pid, &status, 0, used) < 0 && errno == EINTR)
        ;
    close(p->socket);
    close(p->job);
    p->pid = 0;
    return status;
}

static void tell_death(struct planner_process *p, struct err *refused)
{
    struct rusage used = {0};
    struct buf had = {0}, may = {0};
    int status = reap_process(p, &used);
    buf_bytes(&had, (uint64_t)used.ru_maxrss << 10);
    buf_bytes(&may, (uint64_t)p->memory);
    err_set(refused, ERR_INVALID,
            "planning the job failed (%s %d, with %s of the %s of memory that a plan may take): "
            "`weft plan` shows whether it is too large",
            WIFSIGNALED(status) ? "signal" : "exit",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), buf_str(&had),
            buf_str(&may));
    buf_clear(&had);
    buf_clear(&may);
}

bool planner_process_hear(struct planner_process *p, struct err *refused)
{
    *refused = (struct err){0};
    ssize_t n = recv(p->socket, refused, sizeof *refused, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n != (ssize_t)sizeof *refused)
        tell_death(p, refused);
    return true;
}

void planner_process_kill(struct planner_process *p)
{
    if (p->pid)
        reap_process(p, NULL);
}

// ---- the process's side ----

static void limit_memory(int64_t memory)
{
#if !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__ // they take terabytes of addresses
    const struct rlimit l = {(rlim_t)memory, (rlim_t)memory}, no_core = {0, 0};
    (void)setrlimit(RLIMIT_AS, &l);
    (void)setrlimit(RLIMIT_CORE, &no_core);
#else
    (void)memory;
#endif
}

static void check_job(const char *base, const char *text, size_t len, struct arena *a,
                      struct err *e)
{
    struct job_errors errs = {0};
    struct compiled compiled;
    struct job job;
    if (job_parse(a, &weft_schema, NULL, *base ? base : NULL, text, len, NULL, 0, &job, &errs))
        job_errors_err(&errs, e);
    else if (!job_check_devices(&job, e))
        plan_compile(&job, a, &compiled, NULL, e);
}

// Returns a copy with a zero byte behind it.
static char *read_text(struct arena *a, uint64_t len, off_t at)
{
    char *text = arena_array(a, char, len + 1);
    return pread(JOB_FD, text, len, at) == (ssize_t)len ? text : NULL;
}

int planner_process_main(int64_t memory)
{
    struct request_sizes o;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpriority(PRIO_PROCESS, 0, 5); // the coordinator's own work goes first
    limit_memory(memory);
    while (recv(SOCKET_FD, &o, sizeof o, 0) == (ssize_t)sizeof o) {
        struct arena a;
        struct err e = {0};
        arena_init(&a);
        const char *base = read_text(&a, o.base_len, 0);
        const char *text = read_text(&a, o.text_len, (off_t)o.base_len);
        if (!base || !text)
            return EXIT_FAILURE;
        check_job(base, text, o.text_len, &a, &e);
        arena_clear(&a);
        if (send(SOCKET_FD, &e, sizeof e, MSG_NOSIGNAL) != (ssize_t)sizeof e)
            return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
