// SPDX-License-Identifier: Apache-2.0
// A process that plans; see planner_process.h.
#include "coordinator/serve/planner_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/base/heap.h"
#include "common/base/system.h"
#include "coordinator/serve/job_facts.h"

enum { SOCKET_FD = 0, MEMORY_FD = 1 };
enum { MESSAGE_MAX = 64 << 20 }; // no text is so large

// ---- messages ----

// Leaves the message in the file, and its length in the socket.
static bool send_message(int socket, int file, const ProtobufCMessage *m)
{
    uint64_t len = protobuf_c_message_get_packed_size(m);
    struct buf bytes = {0};
    buf_reserve(&bytes, len);
    protobuf_c_message_pack(m, (uint8_t *)bytes.data);
    bool ok = !ftruncate(file, 0) && pwrite(file, bytes.data, len, 0) == (ssize_t)len &&
              send(socket, &len, sizeof len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof len;
    buf_clear(&bytes);
    return ok;
}

// Null: it is none, or is damaged.
static ProtobufCMessage *read_message(int file, uint64_t len, const ProtobufCMessageDescriptor *d)
{
    struct buf bytes = {0};
    ProtobufCMessage *m = NULL;
    buf_reserve(&bytes, len);
    if (pread(file, bytes.data, len, 0) == (ssize_t)len)
        m = protobuf_c_message_unpack(d, NULL, len, (const uint8_t *)bytes.data);
    buf_clear(&bytes);
    return m;
}

// ---- the coordinator's side ----

static int spawn_process(struct planner_process *p, const char *program, int socket, struct err *e)
{
    char memory[32], *argv[] = {frame_text(program), frame_text("--planner"), memory, NULL};
    const struct child_file files[] = {{socket, SOCKET_FD}, {p->memory_file, MEMORY_FD}, {-1, -1}};
    snprintf(memory, sizeof memory, "%lld", (long long)p->memory);
    int rc = child_start(&(struct child_start){.program = program, .argv = argv, .files = files},
                         &p->pid);
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
    p->memory_file = memfd_create("weft-job", MFD_CLOEXEC);
    int rc = p->memory_file < 0 ? err_errno(e, ERR_INTERNAL, "cannot make memory to plan the job")
                                : spawn_process(p, program, pair[1], e);
    close(pair[1]);
    if (!rc)
        return 0;
    close(p->socket);
    system_close(&p->memory_file);
    return rc;
}

int planner_process_give(struct planner_process *p, const Weft__Plan__JobText *text, struct err *e)
{
    if (send_message(p->socket, p->memory_file, &text->base))
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
    close(p->memory_file);
    p->pid = 0;
    return status;
}

Weft__Plan__JobFacts *planner_process_refuse(const char *why)
{
    Weft__Plan__JobFacts *f = heap_alloc(sizeof *f);
    weft__plan__job_facts__init(f);
    f->refused = heap_strdup(why);
    return f;
}

static Weft__Plan__JobFacts *explain_death(struct planner_process *p)
{
    struct rusage used = {0};
    struct buf why = {0};
    int status = reap_process(p, &used);
    buf_printf(&why, "planning the job failed (%s %d, with ",
               WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    buf_bytes(&why, (uint64_t)used.ru_maxrss << 10);
    buf_puts(&why, " of the ");
    buf_bytes(&why, (uint64_t)p->memory);
    buf_puts(&why, " of memory that a plan may take): `weft plan` shows whether it is too large");
    Weft__Plan__JobFacts *f = planner_process_refuse(buf_str(&why));
    buf_clear(&why);
    return f;
}

Weft__Plan__JobFacts *planner_process_hear(struct planner_process *p)
{
    uint64_t len = 0;
    ssize_t n = recv(p->socket, &len, sizeof len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return NULL;
    ProtobufCMessage *m =
        n == (ssize_t)sizeof len && len <= MESSAGE_MAX
            ? read_message(p->memory_file, len, &weft__plan__job_facts__descriptor)
            : NULL;
    return m ? (Weft__Plan__JobFacts *)(void *)m : explain_death(p);
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

static bool answer_text(uint64_t len)
{
    struct arena a = {0};
    ProtobufCMessage *m = read_message(MEMORY_FD, len, &weft__plan__job_text__descriptor);
    if (!m)
        return false;
    const Weft__Plan__JobFacts *f =
        job_facts_read((const Weft__Plan__JobText *)(const void *)m, &a);
    bool ok = send_message(SOCKET_FD, MEMORY_FD, &f->base);
    arena_clear(&a);
    protobuf_c_message_free_unpacked(m, NULL);
    return ok;
}

int planner_process_main(int64_t memory)
{
    uint64_t len;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpriority(PRIO_PROCESS, 0, 5); // the coordinator's own work goes first
    limit_memory(memory);
    while (recv(SOCKET_FD, &len, sizeof len, 0) == (ssize_t)sizeof len)
        if (!answer_text(len))
            return EXIT_FAILURE;
    return EXIT_SUCCESS;
}
