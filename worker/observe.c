// SPDX-License-Identifier: Apache-2.0
// What this host is. See observe.h.
#include "worker/observe.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/json.h"
#include "common/base/system.h"

#define PROBE_NS (60 * CLOCK_S) // a driver may take its time
#define END_NS   (3 * CLOCK_S)  // to let go of what it has, once all is said
enum { ANSWER_MAX = 1 << 20 };

// ---- the probe ----

// Starts the probe. Its standard error goes where its answer goes, so that a complaint comes with
// the answer.
static int start_probe(const char *rank, const char *kind, int cpus, int out, pid_t *pid,
                       struct err *e)
{
    char count[16];
    char *argv[] = {frame_text(rank),
                    frame_text("--probe"),
                    frame_text("--kind"),
                    frame_text(kind),
                    frame_text("--devices"),
                    count,
                    NULL};
    const struct child_file files[] = {{out, 1}, {out, 2}, {-1, -1}};
    snprintf(count, sizeof count, "%d", cpus);
    if (cpus <= 0)
        argv[4] = NULL;
    const struct child_start start = {.program = rank, .argv = argv, .files = files};
    return child_start(&start, pid) ? err_errno(e, ERR_INVALID, "cannot start %s", rank) : 0;
}

// Says why the probe failed. What it said itself is the cause; people read it far from here, so
// its name in front is left out.
static int report_refusal(const char *rank, const char *kind, const char *said, struct err *e)
{
    static const char prefix[] = "weft-rank: ";
    bool ours = strncmp(said, prefix, sizeof prefix - 1) == 0;
    said += ours ? sizeof prefix - 1 : 0;
    int len = (int)strcspn(said, "\n");
    return ours
               ? err_set(e, ERR_DEVICE, "%.*s", len, said)
               : err_set(e, ERR_DEVICE, "%s --probe --kind %s failed: %.*s", rank, kind, len, said);
}

// What was said whole stands, whatever becomes of the process: a driver that puts many devices to sleep
// may keep it for long, and no signal ends that.
static int run_probe(const char *rank, const char *kind, int cpus, struct buf *answer,
                     struct err *e)
{
    int p[2], status = 0;
    pid_t pid;
    if (pipe2(p, O_CLOEXEC))
        return err_errno(e, ERR_INTERNAL, "cannot make a pipe");
    int rc = start_probe(rank, kind, cpus, p[1], &pid, e);
    close(p[1]);
    if (!rc) {
        bool answered = child_read(p[0], ANSWER_MAX, clock_mono_ns() + PROBE_NS, answer);
        bool ended = child_end(pid, answered ? END_NS : 0, &status);
        bool stands = answered && strchr(buf_str(answer), '{') && (!ended || WIFSIGNALED(status));
        if (!stands && (!ended || !answered))
            rc = err_set(e, ERR_TIMEOUT, "the program that looks for devices does not end");
        else if (!stands && status)
            rc = report_refusal(rank, kind, buf_str(answer), e);
    }
    close(p[0]);
    return rc;
}

// Adds the devices to those that the host has already.
static int add_devices(const struct json *top, const char *kind, struct arena *a,
                       Weft__V1__Register *about, int *n, struct err *e)
{
    const struct json *list, *it;
    int rc = json_get_array(top, "devices", &list, e);
    if (rc)
        return rc;
    size_t had = about->n_devices;
    Weft__V1__Device **all = arena_array(a, Weft__V1__Device *, (int)had + list->count + 1);
    for (size_t i = 0; i < had; i++)
        all[i] = about->devices[i];
    about->devices = all;
    for (it = list->first; it && !rc; it = it->next) {
        Weft__V1__Device *d = all[about->n_devices] = arena_new(a, Weft__V1__Device);
        weft__v1__device__init(d);
        d->index = (int)about->n_devices++;
        d->kind = arena_strdup(a, kind);
        const char *text = "";
        rc = json_get_str(it, "model", &text, e);
        d->model = frame_text(text);
        if (!rc)
            rc = json_get_int(it, "memory", &d->memory, e);
        const struct {
            const char *key;
            char **to;
        } others[] = {{"isa", &d->isa},
                      {"driver", &d->driver},
                      {"pci", &d->pci},
                      {"uuid", &d->uuid},
                      {"peers", &d->peers}};
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (!json_get_str(it, others[i].key, &text, NULL))
                *others[i].to = frame_text(text);
    }
    *n = (int)(about->n_devices - had);
    return rc;
}

int observe_devices(const char *rank, const char *kind, int cpus, struct arena *a,
                    Weft__V1__Register *about, int *n, struct err *e)
{
    struct buf answer = {0};
    struct json *top;
    size_t had = about->n_devices;
    int rc = run_probe(rank, kind, cpus, &answer, e);
    // A driver may have said something first.
    const char *line = rc ? NULL : strchr(buf_str(&answer), '{');
    if (!rc && !line)
        rc = err_set(e, ERR_DEVICE, "%s --probe printed no JSON", rank);
    if (!rc) {
        rc = json_parse(a, line, strlen(line), &top, e);
        rc = rc ? rc : add_devices(top, kind, a, about, n, e);
        if (rc)
            err_wrap(e, "what %s --probe --kind %s answers", rank, kind);
    }
    buf_clear(&answer);
    if (rc)
        about->n_devices = had;
    for (size_t i = had; i < about->n_devices && !strcmp(kind, "cpu"); i++)
        about->devices[i]->memory /= *n; // they are one machine's
    return rc;
}

// ---- the machine ----

int64_t observe_memory(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

// A directory that is ours alone, made if it is not there.
static bool is_private(const char *path)
{
    struct stat st;
    if (mkdir(path, 0700) && errno != EEXIST)
        return false;
    return !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 077);
}

int observe_runs(const char *state, char *out, size_t size, struct err *e)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char base[4100];
    bool ours = false;
    if (run && run[0] == '/' && strlen(run) < 3000) {
        snprintf(base, sizeof base, "%s/weft", run);
        ours = is_private(base);
    }
    if (!ours) {
        snprintf(base, sizeof base, "/tmp/weft-%u", (unsigned)geteuid());
        ours = is_private(base);
    }
    snprintf(out, size, "%s/%s", ours ? base : state, ours ? "runs" : "meet");
    return is_private(out) ? 0 : err_set(e, ERR_INVALID, "%s is not a folder of ours alone", out);
}

void observe_share(const char *runs, char *out, size_t size)
{
    char machine[64], name[64] = "host";
    struct stat st = {0}, meet = {0};
    (void)stat(runs, &meet);
    (void)folder_read("/etc", "machine-id", machine, sizeof machine, NULL);
    machine[strcspn(machine, "\n")] = 0;
    (void)gethostname(name, sizeof name - 1);
    (void)stat("/proc/self/ns/net", &st);
    snprintf(out, size, "%s-%.8s-%llu-%llx.%llx", name, machine, (unsigned long long)st.st_ino,
             (unsigned long long)meet.st_dev, (unsigned long long)meet.st_ino);
}

static bool is_loopback(const struct sockaddr *a)
{
    char host[64];
    if (getnameinfo(a, a->sa_family == AF_INET6 ? 28 : 16, host, sizeof host, NULL, 0,
                    NI_NUMERICHOST))
        return true;
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

// The local address of the route to a host and port; "" when there is no route, or it stays on this
// machine.
static void find_route(const char *host, const char *port, char *out, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    *out = 0;
    if (getaddrinfo(host, port, &hints, &list))
        return;
    for (struct addrinfo *it = list; it && !*out; it = it->ai_next) {
        struct sockaddr_storage own = {0};
        socklen_t len = sizeof own;
        int fd = socket(it->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && !connect(fd, it->ai_addr, it->ai_addrlen) &&
            !getsockname(fd, (struct sockaddr *)&own, &len) &&
            !is_loopback((struct sockaddr *)&own))
            (void)getnameinfo((struct sockaddr *)&own, len, out, (socklen_t)size, NULL, 0,
                              NI_NUMERICHOST);
        system_close(&fd);
    }
    freeaddrinfo(list);
}

static void find_route_to_coordinator(const char *coordinator, char *out, size_t size)
{
    char host[256];
    const char *colon = strrchr(coordinator, ':');
    *out = 0;
    if (!strncmp(coordinator, "unix:", 5) || !colon)
        return;
    bool bracket = coordinator[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - coordinator) - 2 * bracket,
             coordinator + bracket);
    find_route(host, colon + 1, out, size);
}

// The IPv4 address of the only interface besides loopback.
static void find_only_interface(char *out, size_t size)
{
    struct ifaddrs *list = NULL;
    int found = 0;
    *out = 0;
    if (getifaddrs(&list))
        return;
    for (struct ifaddrs *it = list; it; it = it->ifa_next)
        if (it->ifa_addr && it->ifa_addr->sa_family == AF_INET && it->ifa_flags & IFF_UP &&
            !(it->ifa_flags & IFF_LOOPBACK) && ++found == 1)
            (void)getnameinfo(it->ifa_addr, sizeof(struct sockaddr_in), out, (socklen_t)size, NULL,
                              0, NI_NUMERICHOST);
    freeifaddrs(list);
    if (found != 1)
        *out = 0;
}

void observe_address(const char *coordinator, char *out, size_t size)
{
    // Addresses that documents use: nobody has them, so the default route leads there.
    static const char *const elsewhere[] = {"192.0.2.1", "2001:db8::1"};
    find_route_to_coordinator(coordinator, out, size);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere && !*out; i++)
        find_route(elsewhere[i], "9", out, size);
    if (!*out)
        find_only_interface(out, size);
}
