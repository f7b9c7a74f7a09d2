// SPDX-License-Identifier: Apache-2.0
// weft doctor: is this host fit to work? Each check is one line: ok, warn (works, but worse than it
// could) or bad (something will fail), with what to do. Exit 1 when one is bad.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/base/system.h"
#include "common/rpc/tls_ca.h"
#include "coordinator/cli/allocation.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"

enum { HEAR_S = 60, HEAR_BYTES = 65536, END_S = 5, ANSWER_S = 5 };
enum health { OK, WARN, BAD };
static const char *const health_names[] = {"ok", "warn", "bad"};

struct check {
    const struct verb *verb;
    const struct args *args;
    char rank[4096];      // path of weft-rank; "" if it was not found
    struct cli_link link; // to the coordinator, from its check on
    bool reached;
    // what the check that runs now has found
    enum health health;
    char text[700];
    const char *todo;
};

static void set_result(struct check *c, enum health health, const char *todo, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void set_result(struct check *c, enum health health, const char *todo, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->text, sizeof c->text, fmt, ap);
    va_end(ap);
    c->health = health;
    c->todo = todo;
}

// ---- programs and devices ----

static void check_programs(struct check *c)
{
    static const char *const names[] = {"weft-rank", "weft-worker", "weft-coordinator"};
    char path[sizeof c->rank];
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        if (system_find_program(names[i], path, sizeof path, &e)) {
            set_result(c, BAD, "install it beside weft: make install", "%s", e.text);
            return;
        }
        if (i == 0)
            memcpy(c->rank, path, sizeof path);
    }
    set_result(c, OK, NULL, "weft %s, weft-rank, weft-worker and weft-coordinator in %.*s",
               WEFT_VERSION, (int)(strrchr(c->rank, '/') - c->rank), c->rank);
}

// What a program prints, for HEAR_S at most; once all is said it has END_S to end. Returns its exit
// code, or -1.
static int read_program_output(char *const *argv, struct buf *out, struct err *e)
{
    int p[2], status = 0;
    pid_t pid;
    int64_t end = clock_mono_ns() + HEAR_S * CLOCK_S;
    if (pipe2(p, O_CLOEXEC))
        return err_errno(e, ERR_IO, "pipe"), -1;
    const struct child_file files[] = {{p[1], 1}, {p[1], 2}, {-1, -1}};
    const struct child_start start = {.program = argv[0], .argv = argv, .files = files};
    int failed = child_start(&start, &pid);
    if (failed)
        err_errno(e, ERR_IO, "cannot start %s", argv[0]);
    close(p[1]);
    if (!failed)
        (void)child_read(p[0], HEAR_BYTES, end, out);
    close(p[0]);
    if (failed)
        return -1;
    if (!child_end(pid, clock_mono_ns() < end ? END_S * CLOCK_S : 0, &status))
        return err_set(e, ERR_DEVICE, "it does not end"), -1;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    err_set(e, ERR_DEVICE, "it was killed by signal %d", WTERMSIG(status));
    return -1;
}

static void describe_devices(struct check *c, struct buf *line)
{
    struct arena arena = {0};
    struct json *j;
    const struct json *devices;
    const char *model = "unknown";
    struct err e = {0};
    char *start = line->data ? strchr(line->data, '{') : NULL;
    if (!start || json_parse(&arena, start, strlen(start), &j, &e) ||
        json_get_array(j, "devices", &devices, &e) || !devices->count)
        set_result(c, BAD, "look at the backend's libraries: WEFT_BACKEND_DIR, /usr/lib/weft",
                   "weft-rank --probe found no device: %.300s", buf_str(line));
    else {
        json_get_str(devices->first, "model", &model, &e);
        set_result(c, OK, NULL, "%d cpu device%s: %s", devices->count,
                   devices->count == 1 ? "" : "s", model);
    }
    arena_clear(&arena);
}

static char probe[] = "--probe", kind[] = "--kind";

static void check_devices(struct check *c)
{
    static char cpu[] = "cpu";
    char *argv[] = {c->rank, probe, kind, cpu, NULL};
    struct buf out = {0};
    struct err e = {0};
    if (!c->rank[0])
        set_result(c, BAD, "see programs", "not tried: weft-rank was not found");
    else if (read_program_output(argv, &out, &e) != 0)
        set_result(c, BAD, "look at the backend's libraries: WEFT_BACKEND_DIR, ldd libweft_cpu.so",
                   "weft-rank --probe failed: %.300s%s", buf_str(&out), e.text);
    else
        describe_devices(c, &out);
    buf_clear(&out);
}

static int get_number(const struct json *device, const char *key)
{
    int64_t n = 0;
    json_get_int(device, key, &n, NULL);
    return (int)n;
}

static const char *get_word(const struct json *device, const char *key)
{
    const char *s = "";
    json_get_str(device, key, &s, NULL);
    return s;
}

static void describe_gpus(struct check *c, const char *line)
{
    struct arena arena = {0};
    struct json *j;
    const struct json *devices;
    struct buf text = {0};
    struct err e = {0};
    if (json_parse(&arena, line, strlen(line), &j, &e) ||
        json_get_array(j, "devices", &devices, &e))
        set_result(c, BAD, "look at the backend: ldd libweft_cuda.so", "weft-rank --probe: %s",
                   e.text);
    else {
        for (const struct json *d = devices->first; d; d = d->next) {
            int64_t memory = 0;
            json_get_int(d, "memory", &memory, NULL);
            const char *peers = get_word(d, "peers");
            buf_printf(&text, "%s%d: %s, %s, %.1f GiB, driver for CUDA %s, %s%s%s",
                       text.len ? "; " : "", get_number(d, "index"), get_word(d, "model"),
                       get_word(d, "isa"), (double)memory / 0x1p30, get_word(d, "driver"),
                       get_word(d, "pci"), *peers ? ", reaches " : "", peers);
        }
        set_result(c, OK, NULL, "%s", buf_str(&text));
    }
    buf_clear(&text);
    arena_clear(&arena);
}

// A host without a GPU is fine. If it has one that cannot be used, this says why.
static void check_cuda(struct check *c)
{
    static char cuda[] = "cuda";
    char *argv[] = {c->rank, probe, kind, cuda, NULL};
    struct buf out = {0};
    struct err e = {0};
    int code = c->rank[0] ? read_program_output(argv, &out, &e) : -1;
    const char *line = out.data ? strchr(out.data, '{') : NULL;
    if (!c->rank[0])
        set_result(c, BAD, "see programs", "not tried: weft-rank was not found");
    else if (code <= 0 && line) // -1: its driver may let go of many devices slowly
        describe_gpus(c, line);
    else if (access("/dev/nvidiactl", F_OK))
        set_result(c, OK, NULL, "none: this host has no NVIDIA driver");
    else
        set_result(c, WARN,
                   "install libweft_cuda.so beside weft-rank, or the driver that it asks for",
                   "jobs of kind cuda cannot run here: %.300s%s", buf_str(&out), e.text);
    buf_clear(&out);
}

// ---- limits, clock, shared memory ----

static void check_files(struct check *c)
{
    enum { ENOUGH = 4096 };
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r))
        set_result(c, WARN, "ulimit -n", "the limit is not known");
    else if (r.rlim_max < ENOUGH)
        set_result(c, WARN, "raise it: ulimit -n 65536, or LimitNOFILE= of the unit",
                   "%llu open files at most", (unsigned long long)r.rlim_max);
    else
        set_result(c, OK, NULL, "%llu open files (%llu at most)", (unsigned long long)r.rlim_cur,
                   (unsigned long long)r.rlim_max);
}

static void check_memlock(struct check *c)
{
    struct rlimit r;
    char word[WORD_MAX];
    if (getrlimit(RLIMIT_MEMLOCK, &r) || r.rlim_max == RLIM_INFINITY)
        set_result(c, OK, NULL, "no limit");
    else if (r.rlim_max < 8 << 20)
        set_result(c, WARN, "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity of the unit",
                   "%s of locked memory at most", word_bytes((int64_t)r.rlim_max, word));
    else
        set_result(c, OK, NULL, "%s of locked memory", word_bytes((int64_t)r.rlim_max, word));
}

static void check_clock(struct check *c)
{
    struct timex t = {0};
    int state = adjtimex(&t);
    if (time(NULL) < 1700000000)
        set_result(c, BAD, "set the clock: certificates depend on it", "it stands before 2023");
    else if (state < 0 || state == TIME_ERROR || t.status & STA_UNSYNC)
        set_result(c, WARN, "run an NTP client: certificates and histories carry its time",
                   "nothing keeps it right");
    else
        set_result(c, OK, NULL, "kept right, within %ld ms", (long)(t.maxerror / 1000));
}

static void check_sockets(struct check *c)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (geteuid() == 0)
        run = "/run";
    if (!run || !*run)
        set_result(c, WARN,
                   "log in with a session (pam_systemd), or give --listen and --coordinator",
                   "XDG_RUNTIME_DIR is not set: there is no place for the default socket");
    else if (stat(run, &st) || !S_ISDIR(st.st_mode) || access(run, W_OK))
        set_result(c, WARN, "give --listen and --coordinator", "%s cannot be written", run);
    else
        set_result(c, OK, NULL, "%s", run);
}

// Whether a `weft run` here would be one of several, as the environment says.
static void check_allocation(struct check *c)
{
    struct allocation a;
    struct err e = {0};
    if (allocation_find(&a, &e))
        set_result(c, BAD, "start weft run by srun with one task a node, or one a pod", "%s",
                   e.text);
    else if (a.kind == ALLOCATION_NONE)
        set_result(c, *a.doubt ? WARN : OK, "start it by srun", "%s",
                   *a.doubt ? a.doubt : "none: weft run is alone");
    else
        set_result(c, OK, NULL, "weft run is index %d of %d, %s (%s)", a.index, a.size,
                   a.index ? "an agent of index 0" : "the leader", a.text);
}

// ---- storage ----

static int try_rename(const char *dir, struct err *e)
{
    char from[4200], to[4200], in[4300];
    snprintf(from, sizeof from, "%s/.weft-doctor-%d", dir, (int)getpid());
    snprintf(to, sizeof to, "%s/.weft-doctor-%d.b", dir, (int)getpid());
    snprintf(in, sizeof in, "%s/file", to);
    if (mkdir(from, 0700))
        return err_errno(e, ERR_IO, "cannot make a folder in %s", dir);
    int rc = rename(from, to) ? err_errno(e, ERR_IO, "cannot rename a folder in %s", dir) : 0;
    int fd = rc ? -1 : open(in, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (!rc && (fd < 0 || write(fd, "x", 1) != 1 || fsync(fd)))
        rc = err_errno(e, ERR_IO, "cannot write durably in %s", dir);
    system_close(&fd);
    // A rename must not replace a folder that holds something: the commit of a checkpoint relies on
    // that.
    if (!rc && mkdir(from, 0700) == 0 && rename(from, to) == 0)
        rc = err_set(e, ERR_IO, "%s lets a rename replace a folder that is not empty", dir);
    unlink(in);
    rmdir(to);
    rmdir(from);
    return rc;
}

static void check_storage(struct check *c)
{
    const char *dir = c->args->dir ? c->args->dir : ".";
    struct err e = {0};
    struct statvfs fs;
    char word[WORD_MAX];
    if (try_rename(dir, &e))
        set_result(c, BAD, "name a folder on storage with atomic rename: --dir DIR", "%s", e.text);
    else if (statvfs(dir, &fs) == 0 && (fs.f_bavail * fs.f_frsize) < 1ULL << 30)
        set_result(c, WARN, "make room", "%s renames and syncs, but only %s are free", dir,
                   word_bytes((int64_t)(fs.f_bavail * fs.f_frsize), word));
    else
        set_result(c, OK, NULL, "%s renames and syncs, %s free", dir,
                   word_bytes((int64_t)(fs.f_bavail * fs.f_frsize), word));
}

// ---- coordinator and certificates ----

static void check_tls(struct check *c)
{
    const char *dir = c->args->tls ? c->args->tls : getenv("WEFT_TLS");
    struct arena arena = {0};
    struct rpc_tls tls;
    struct err e = {0};
    int64_t end;
    char role[32], name[TLS_NAME_MAX + 1], word[WORD_MAX];
    if (!dir || !*dir)
        set_result(c, OK, NULL, "no certificates: only Unix sockets and loopback are used");
    else if (cli_link_tls(dir, &arena, &tls, &e) ||
             tls_cert_read(tls.cert, &end, role, sizeof role, name, sizeof name, &e))
        set_result(c, BAD, "get one: weft-coordinator issue --role client NAME", "%s", e.text);
    else {
        double left = difftime((time_t)end, time(NULL));
        set_result(c,
                   left <= 0           ? BAD
                   : left < 14 * 86400 ? WARN
                                       : OK,
                   "get a new one: weft-coordinator issue --role client NAME",
                   "%s: %s with role %s, %s", tls.cert, name, role,
                   left > 0 ? "good for" : "has expired");
        if (left > 0) {
            size_t n = strlen(c->text);
            snprintf(c->text + n, sizeof c->text - n, " %s", word_duration(left, word));
        }
    }
    arena_clear(&arena);
}

static void check_coordinator(struct check *c)
{
    struct cli_link *l = &c->link;
    V1_NEW(JobsRequest, jobs_request, req);
    ProtobufCMessage *reply = NULL;
    enum rpc_code code;
    struct err e = {0};
    if (cli_link_dial(l, c->verb, c->args->coordinator, c->args->tls, &e))
        set_result(c, BAD, "see `weft help doctor` on --coordinator", "%s", e.text);
    else if (cli_link_try(l, LINK_JOBS, &req.base, ANSWER_S * CLOCK_S, &reply, &code, &e))
        set_result(c, BAD, "start weft-coordinator there, or name another with --coordinator",
                   "%s (from %s): %s", l->folder ? l->folder : l->address, l->origin, e.text);
    else {
        const Weft__V1__JobsReply *r = (const Weft__V1__JobsReply *)(const void *)reply;
        set_result(c, OK, NULL, "%s answers: cluster %s, %zu job%s or run%s",
                   l->folder ? l->folder : l->address, r->cluster, r->n_jobs,
                   r->n_jobs == 1 ? " waits" : "s wait", r->n_jobs == 1 ? "s" : "");
        c->reached = true;
        cli_link_free(reply);
    }
}

static bool is_ready(const Weft__V1__WorkerStatus *w)
{
    return strcmp(w->state, "ready") == 0;
}

// Whether there are two ready hosts that do not share memory and network.
static bool need_addresses(const Weft__V1__WorkersReply *r)
{
    const Weft__V1__WorkerStatus *first = NULL;
    for (size_t i = 0; i < r->n_workers; i++) {
        if (!is_ready(r->workers[i]))
            continue;
        first = first ? first : r->workers[i];
        if (strcmp(r->workers[i]->share, first->share) != 0)
            return true;
    }
    return false;
}

// Names the ready hosts that others' ranks cannot reach; or null.
static const char *list_unreachable(const Weft__V1__WorkersReply *r, struct arena *a)
{
    const char *list = NULL;
    for (size_t i = 0; i < r->n_workers; i++) {
        const Weft__V1__WorkerStatus *w = r->workers[i];
        if (is_ready(w) && !*w->address)
            list = list ? arena_printf(a, "%s, %s", list, w->name) : w->name;
    }
    return list;
}

// Names the ready hosts that do not reach themselves by the address that they give others; or null.
static const char *list_doubtful(const Weft__V1__WorkersReply *r, struct arena *a)
{
    const char *list = NULL;
    for (size_t i = 0; i < r->n_workers; i++) {
        const Weft__V1__WorkerStatus *w = r->workers[i];
        if (is_ready(w) && *w->address_doubt)
            list = arena_printf(a, "%s%s%s at %s (%s)", list ? list : "", list ? ", " : "", w->name,
                                w->address, w->address_doubt);
    }
    return list;
}

static void judge_workers(struct check *c, const Weft__V1__WorkersReply *r)
{
    struct arena a = {0};
    bool across = need_addresses(r);
    const char *unreachable = across ? list_unreachable(r, &a) : NULL;
    const char *doubtful = across ? list_doubtful(r, &a) : NULL;
    size_t other = 0, ready = 0;
    for (size_t i = 0; i < r->n_workers; i++) {
        other += strcmp(r->workers[i]->version, WEFT_VERSION) != 0;
        ready += is_ready(r->workers[i]);
    }
    if (!ready)
        set_result(c, WARN, "start weft-worker on a host; `weft workers` lists those known",
                   "%zu known, none ready", r->n_workers);
    else if (other)
        set_result(c, WARN, "install one version everywhere",
                   "%zu ready, %zu of another version than %s", ready, other, WEFT_VERSION);
    else if (unreachable)
        set_result(c, WARN,
                   "start weft-worker there with --address, the one by which the other hosts reach "
                   "it: until then no job goes across",
                   "%zu ready, other hosts cannot reach %s", ready, unreachable);
    else if (doubtful)
        set_result(
            c, WARN,
            "look at --address of weft-worker there. Nothing is wrong where a NAT takes calls "
            "from other hosts only",
            "%zu ready, not reached by their own call: %s", ready, doubtful);
    else
        set_result(c, OK, NULL, "%zu ready of %zu, version %s", ready, r->n_workers, WEFT_VERSION);
    arena_clear(&a);
}

static void check_workers(struct check *c)
{
    V1_NEW(WorkersRequest, workers_request, req);
    ProtobufCMessage *reply = NULL;
    enum rpc_code code;
    struct err e = {0};
    if (!c->reached)
        set_result(c, WARN, "see coordinator", "not asked: the coordinator is not reached");
    else if (cli_link_try(&c->link, LINK_WORKERS, &req.base, ANSWER_S * CLOCK_S, &reply, &code, &e))
        set_result(c, BAD, "see coordinator", "%s", e.text);
    else {
        judge_workers(c, (const Weft__V1__WorkersReply *)(const void *)reply);
        cli_link_free(reply);
    }
}

struct troubles {
    size_t jobs, known;
    char first[500]; // "NAME: what"
};

// Collects the troubles of all jobs that have not ended, page by page.
static int ask_for_troubles(struct cli_link *l, struct troubles *t, struct err *e)
{
    V1_NEW(JobsRequest, jobs_request, req);
    ProtobufCMessage *reply;
    enum rpc_code code;
    do {
        int rc = cli_link_try(l, LINK_JOBS, &req.base, ANSWER_S * CLOCK_S, &reply, &code, e);
        if (rc)
            return rc;
        const Weft__V1__JobsReply *page = (const Weft__V1__JobsReply *)(const void *)reply;
        t->known += page->n_jobs;
        for (size_t i = 0; i < page->n_jobs; i++)
            if (page->jobs[i]->in_trouble && t->jobs++ == 0)
                snprintf(t->first, sizeof t->first, "%s: %s", page->jobs[i]->name,
                         page->jobs[i]->text);
        req.after = page->next;
        cli_link_free(reply);
    } while (req.after);
    return 0;
}

static void check_jobs(struct check *c)
{
    struct troubles t = {0};
    struct err e = {0};
    if (!c->reached)
        set_result(c, WARN, "see coordinator", "not asked: the coordinator is not reached");
    else if (ask_for_troubles(&c->link, &t, &e))
        set_result(c, BAD, "see coordinator", "%s", e.text);
    else if (t.jobs > 1)
        set_result(c, WARN, "`weft jobs` says it of each, `weft why` since when",
                   "%zu of %zu in trouble; the oldest, %s", t.jobs, t.known, t.first);
    else if (t.jobs)
        set_result(c, WARN, "`weft why` says since when", "%s", t.first);
    else
        set_result(c, OK, NULL, "of %zu that have not ended none is in trouble", t.known);
}

static const struct {
    const char *name;
    void (*run)(struct check *c);
} checks[] = {
    {"programs", check_programs}, {"devices", check_devices},         {"cuda", check_cuda},
    {"files", check_files},       {"memlock", check_memlock},         {"clock", check_clock},
    {"sockets", check_sockets},   {"allocation", check_allocation},   {"storage", check_storage},
    {"tls", check_tls},           {"coordinator", check_coordinator}, {"workers", check_workers},
    {"jobs", check_jobs},
};

static void print_check(const char *name, const struct check *c, struct json_out *w, bool json)
{
    bool todo = c->health != OK;
    if (!json) {
        plain_line(w->buf, "%-4s  %-12s %s", health_names[c->health], name, c->text);
        if (todo)
            plain_line(w->buf, "      %-12s to do: %s", "", c->todo);
        return;
    }
    json_object(w, NULL);
    json_str(w, "name", name);
    json_str(w, "state", health_names[c->health]);
    json_str(w, "text", c->text);
    json_str(w, "todo", todo ? c->todo : NULL);
    json_end(w);
}

int verb_doctor(const struct verb *v, const struct args *a)
{
    struct check c = {.verb = v, .args = a};
    struct buf out = {0};
    struct json_out w = {.buf = &out};
    bool ok = true;
    if (a->json) {
        json_print_start(&w, &out, true);
        json_array(&w, "checks");
    }
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        checks[i].run(&c);
        ok &= c.health != BAD;
        print_check(checks[i].name, &c, &w, a->json);
    }
    if (a->json) {
        json_end(&w);
        json_bool(&w, "ok", ok);
        json_print_end(&w);
    }
    put_out(&out);
    cli_link_close(&c.link);
    return ok ? CLIENT_OK : CLIENT_FAILED;
}
