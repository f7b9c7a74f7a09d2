// SPDX-License-Identifier: Apache-2.0
// weft-worker: the daemon of one host. It finds the host's devices, attaches to the coordinator and
// runs the ranks that are placed on it; it never touches a device itself.
//
// Errors travel up as values and are logged here, once. Exit codes: 0 asked to stop · 70 internal,
// restart me · 76 fenced, 78 configuration: do not restart.
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/flag.h"
#include "common/base/folder.h"
#include "common/base/host_address.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "common/rpc/coordinator_address.h"
#include "worker/join_cluster.h"
#include "worker/observe.h"
#include "worker/worker_daemon.h"

enum { GRACE_S = 90, PATH_LEN = 4200 };
#define ADDRESS_WAIT_NS CLOCK_S // for a call of this host's to its own address

static const char usage[] =
    "usage: weft-worker [flags]\n"
    "       weft-worker join TOKEN --coordinator ADDR [--state DIR] [--tls DIR] [--name N]\n"
    "\n"
    "  --coordinator ADDR     unix:/path or HOST:PORT; else WEFT_COORDINATOR, MASTER_ADDR and\n"
    "                         MASTER_PORT, what Slurm or Kubernetes set, or the default socket\n"
    "  --state DIR            this worker's own folder; default /var/lib/weft/worker for root,\n"
    "                         else $XDG_STATE_HOME/weft/worker\n"
    "  --tls DIR              ca.pem, worker.pem, worker.key; default DIR/tls of --state, if "
    "there\n"
    "  --name N               what people call this host; default its host name. Of join: in\n"
    "                         the certificate alone\n"
    "  --address HOST         what other hosts' ranks reach this one's by, without a port; it may\n"
    "                         be a NAT's. Default: the local address of the route to the\n"
    "                         coordinator, else of the default route\n"
    "  --rack R               hosts of a rack are placed side by side\n"
    "  --cpu-devices N        virtual CPU devices; default the cores\n"
    "  --cuda-devices N       the first N GPUs, 0: none; default all that are found\n"
    "  --data-root DIR        submitted jobs read data beneath it; default STATE/data\n"
    "  --checkpoint-root DIR  and keep checkpoints beneath it; default STATE/checkpoints\n"
    "  --own-rights           no roots: paths are what they are to you\n"
    "  --grace D              for SIGTERM's drain (90s, 500ms, 2m); default 90s\n"
    "  --rank PATH            weft-rank; default the one beside this program\n"
    "  --share TEXT           hosts with the same TEXT share memory; default: this machine\n"
    "  --ready-fd N           told the host's id when it has attached first\n"
    "  --parent-fd N          when its other end closes, ranks are killed and the worker ends\n";

struct worker_flags {
    const char *coordinator, *state, *tls, *name, *address, *rack, *data_root, *checkpoint_root;
    const char *rank, *share, *token;
    int cpu_devices, cuda_devices, ready_fd, parent_fd; // devices: −1 is the default
    int64_t grace_ns;
    bool own_rights;
};

// ---- flags ----

#define AT(member) offsetof(struct worker_flags, member)
static const struct flag_row rows[] = {
    {"coordinator", FLAG_TEXT, AT(coordinator), 0, 0, 0},
    {"state", FLAG_TEXT, AT(state), 0, 0, 0},
    {"tls", FLAG_TEXT, AT(tls), 0, 0, 0},
    {"name", FLAG_TEXT, AT(name), 0, 0, 0},
    {"address", FLAG_TEXT, AT(address), 0, 0, 0},
    {"rack", FLAG_TEXT, AT(rack), 0, 0, 0},
    {"cpu-devices", FLAG_NUMBER, AT(cpu_devices), 0, HOST_DEVICES_MAX, 0},
    {"cuda-devices", FLAG_NUMBER, AT(cuda_devices), 0, HOST_DEVICES_MAX, 0},
    {"data-root", FLAG_TEXT, AT(data_root), 0, 0, 0},
    {"checkpoint-root", FLAG_TEXT, AT(checkpoint_root), 0, 0, 0},
    {"own-rights", FLAG_SWITCH, AT(own_rights), 0, 0, 0},
    {"grace", FLAG_DURATION, AT(grace_ns), 0, 0, 0},
    {"rank", FLAG_TEXT, AT(rank), 0, 0, 0},
    {"share", FLAG_TEXT, AT(share), 0, 0, 0},
    {"ready-fd", FLAG_DESCRIPTOR, AT(ready_fd), 0, 0, 0},
    {"parent-fd", FLAG_DESCRIPTOR, AT(parent_fd), 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int parse_flags(int argc, char **argv, struct worker_flags *f, struct err *e)
{
    int rest, rc = flags_read(rows, ROWS, argc, argv, f, &rest, e);
    if (!rc && rest < argc && !strcmp(argv[rest], "join")) {
        if (argc - rest != 2)
            return err_set(e, ERR_INVALID, "join takes one TOKEN");
        f->token = argv[rest + 1];
        rest = argc;
    }
    if (!rc && rest < argc) {
        static const char *const verbs[] = {"join"};
        bool near = suggest(argv[rest], verbs, 1) != NULL;
        rc = err_set(e, ERR_INVALID, "unexpected argument '%s'%s", argv[rest],
                     near ? "; did you mean join?" : "");
    }
    return rc;
}

// ---- where things are ----

static int find_state_dir(const struct worker_flags *f, char *out, size_t size, struct err *e)
{
    if (!f->state)
        return folder_find_state("worker", out, size, e);
    int n = snprintf(out, size, "%s", f->state);
    return n < (int)size ? 0 : err_set(e, ERR_INVALID, "--state is too long");
}

static int find_rank_program(const struct worker_flags *f, char *out, size_t size, struct err *e)
{
    ssize_t n;
    if (f->rank) {
        snprintf(out, size, "%s", f->rank);
    } else {
        n = readlink("/proc/self/exe", out, size - 20);
        out[n > 0 ? n : 0] = 0;
        char *slash = strrchr(out, '/');
        snprintf(slash ? slash + 1 : out, 20, "weft-rank");
    }
    if (access(out, X_OK))
        return err_errno(e, ERR_INVALID, "cannot run %s", out);
    return 0;
}

struct paths {
    char ca[PATH_LEN], cert[PATH_LEN], key[PATH_LEN];
};

// --tls DIR must have its files; STATE/tls is taken if it is there.
static int find_tls_files(const struct worker_flags *f, const struct home *h, struct paths *p,
                          struct rpc_tls *out, struct err *e)
{
    char dir[PATH_LEN];
    snprintf(dir, sizeof dir, "%s", f->tls ? f->tls : h->dir);
    if (!f->tls)
        snprintf(dir + strlen(dir), 5, "/tls");
    int n = snprintf(p->ca, sizeof p->ca, "%s/ca.pem", dir);
    snprintf(p->cert, sizeof p->cert, "%s/worker.pem", dir);
    snprintf(p->key, sizeof p->key, "%s/worker.key", dir);
    if (n > PATH_LEN - 20)
        return err_set(e, ERR_INVALID, "--tls is too long");
    if (!f->tls && access(p->cert, F_OK))
        return 0;
    const char *const files[] = {p->ca, p->cert, p->key};
    for (int i = 0; i < 3; i++) // a wrong flag, which no restart mends
        if (access(files[i], R_OK))
            return err_errno(e, ERR_INVALID, "--tls: %s", files[i]);
    *out = (struct rpc_tls){p->ca, p->cert, p->key};
    return 0;
}

// ---- the two verbs ----

struct worker_setup {
    struct home home;
    struct paths tls;
    struct arena arena;
    struct worker_daemon_config c;
    Weft__V1__Register about;
    char name[128], rank[PATH_LEN], address[300], own_address[256], share[256];
    char data_root[PATH_LEN], checkpoint_root[PATH_LEN], runs[PATH_LEN];
};

static int find_roots(const struct worker_flags *f, struct worker_setup *w, struct err *e)
{
    if (f->own_rights && (f->data_root || f->checkpoint_root))
        return err_set(e, ERR_INVALID, "--own-rights and roots exclude each other");
    if (f->own_rights)
        return 0;
    if (home_folder(&w->home, "data", f->data_root, w->data_root, sizeof w->data_root, e))
        return err_wrap(e, "--data-root");
    if (home_folder(&w->home, "checkpoints", f->checkpoint_root, w->checkpoint_root,
                    sizeof w->checkpoint_root, e))
        return err_wrap(e, "--checkpoint-root");
    w->about.data_root = w->data_root;
    w->about.checkpoint_root = w->checkpoint_root;
    return 0;
}

static void choose_name(const struct worker_flags *f, char *out, size_t size)
{
    snprintf(out, size, "host");
    if (f->name)
        snprintf(out, size, "%s", f->name);
    else
        (void)gethostname(out, size - 1);
}

// A wrong address is seen only when a job spans hosts, so the worker calls itself by it. It goes on if
// that fails: a NAT may serve others and not those behind it.
static void try_address(struct worker_setup *w, const char *address)
{
    struct err why = {0};
    if (!host_address_try(address, ADDRESS_WAIT_NS, &why))
        return;
    log_warn("worker",
             "--address %s: this host does not reach itself by it (%s), and others may not",
             address, why.text);
    w->about.address_doubt = arena_strdup(&w->arena, why.text);
}

// Who this host is to others.
static int describe_host(const struct worker_flags *f, struct worker_setup *w, struct err *e)
{
    Weft__V1__Register *a = &w->about;
    int rc = coordinator_address(f->coordinator, w->address, sizeof w->address, e);
    rc = rc ? rc : observe_runs(w->home.dir, w->runs, sizeof w->runs, e);
    if (rc)
        return rc;
    choose_name(f, w->name, sizeof w->name);
    if (f->share)
        snprintf(w->share, sizeof w->share, "%s", f->share);
    else
        observe_share(w->runs, w->share, sizeof w->share);
    if (f->address && host_address_check(f->address, e))
        return err_wrap(e, "--address");
    if (f->address)
        try_address(w, f->address);
    else
        observe_address(w->address, w->own_address, sizeof w->own_address);
    a->host = w->home.host;
    a->name = w->name;
    a->share = w->share;
    a->version = frame_text(WEFT_VERSION);
    a->rack = frame_text(f->rack);
    a->address = f->address ? frame_text(f->address) : w->own_address;
    a->memory = observe_memory();
    a->cores = cores_usable();
    w->c.agent.about = a;
    w->c.agent.grace_ns = f->grace_ns;
    w->c.coordinator = w->address;
    w->c.runs = w->runs;
    return *w->share ? 0 : err_set(e, ERR_INVALID, "--share is empty");
}

// People ask the coordinator why no host has such devices, and not this host's log.
static void note_lack(struct worker_setup *w, const char *kind, const char *why)
{
    Weft__V1__Lack *lack = arena_new(&w->arena, Weft__V1__Lack);
    weft__v1__lack__init(lack);
    lack->kind = frame_text(kind);
    lack->why = arena_strdup(&w->arena, why);
    if (!w->about.n_lacks)
        w->about.lacks = arena_array(&w->arena, Weft__V1__Lack *, HOST_LACKS_MAX);
    PRE(w->about.n_lacks < HOST_LACKS_MAX);
    w->about.lacks[w->about.n_lacks++] = lack;
}

// A host need not have any, unless a flag says how many to offer.
static int find_gpus(const struct worker_flags *f, struct worker_setup *w, struct err *e)
{
    struct err why = {0};
    int n = 0;
    if (!f->cuda_devices) {
        note_lack(w, "cuda", "its worker was started with --cuda-devices 0");
        return 0;
    }
    if (observe_devices(w->rank, "cuda", 0, &w->arena, &w->about, &n, &why)) {
        if (f->cuda_devices > 0)
            return err_set(e, ERR_INVALID, "--cuda-devices %d: %s", f->cuda_devices, why.text);
        if (!w->about.n_devices)
            return err_set(e, ERR_INVALID, "this host offers no device: %s", why.text);
        log_info("worker", "offers no GPU: %s", why.text);
        note_lack(w, "cuda", why.text);
        return 0;
    }
    if (f->cuda_devices > n)
        return err_set(e, ERR_INVALID, "--cuda-devices %d: this host has %d", f->cuda_devices, n);
    if (f->cuda_devices > 0)
        w->about.n_devices -= (size_t)(n - f->cuda_devices);
    return 0;
}

static int find_devices(const struct worker_flags *f, struct worker_setup *w, struct err *e)
{
    int cpus = f->cpu_devices >= 0 ? f->cpu_devices : cores_usable(), n = 0;
    int rc = cpus ? observe_devices(w->rank, "cpu", cpus, &w->arena, &w->about, &n, e) : 0;
    if (rc)
        return rc;
    if (!cpus)
        note_lack(w, "cpu", "its worker was started with --cpu-devices 0");
    if ((rc = find_gpus(f, w, e)))
        return rc;
    return w->about.n_devices ? 0 : err_set(e, ERR_INVALID, "this host offers no device");
}

static int prepare_worker(const struct worker_flags *f, struct worker_setup *w, struct err *e)
{
    char state[4000];
    int rc = find_state_dir(f, state, sizeof state, e);
    rc = rc ? rc : home_open(&w->home, state, e);
    rc = rc ? rc : find_rank_program(f, w->rank, sizeof w->rank, e);
    rc = rc ? rc : describe_host(f, w, e);
    rc = rc ? rc : find_tls_files(f, &w->home, &w->tls, &w->c.tls, e);
    rc = rc ? rc : find_roots(f, w, e);
    w->c.home = &w->home;
    w->c.rank = w->rank;
    w->c.ready_fd = f->ready_fd;
    w->c.parent_fd = f->parent_fd;
    return rc ? rc : find_devices(f, w, e);
}

// 78 (EX_CONFIG) where the user has to mend something, so that no restart is tried.
static int choose_exit_code(int rc)
{
    bool config = rc == ERR_INVALID || rc == ERR_EXISTS || rc == ERR_NOTFOUND || rc == ERR_REFUSED;
    return rc == 0 ? 0 : config ? WORKER_EXIT_CONFIG : WORKER_EXIT_INTERNAL;
}

static int run_worker(const struct worker_flags *f)
{
    static struct worker_setup w;
    struct err e = {0};
    int code = 0;
    w.home.lock = -1;
    weft__v1__register__init(&w.about);
    arena_init(&w.arena);
    int rc = prepare_worker(f, &w, &e);
    rc = rc ? rc : worker_daemon_run(&w.c, &code, &e);
    if (rc)
        log_error("worker", "%s", e.text);
    arena_clear(&w.arena);
    home_close(&w.home);
    return rc ? choose_exit_code(rc) : code;
}

static int run_join(const struct worker_flags *f)
{
    struct home h = {.lock = -1};
    struct err e = {0};
    char state[4000], address[300], dir[PATH_LEN], name[128];
    int rc = find_state_dir(f, state, sizeof state, &e);
    rc = rc ? rc : home_open(&h, state, &e); // a running worker reads the files: not under it
    rc = rc ? rc : coordinator_address(f->coordinator, address, sizeof address, &e);
    choose_name(f, name, sizeof name);
    snprintf(dir, sizeof dir, "%s%s", f->tls ? f->tls : h.dir, f->tls ? "" : "/tls");
    if (!rc)
        rc = join_cluster(f->token, address, dir, name, &e);
    home_close(&h);
    if (rc)
        plain_error("weft-worker: cannot join: %s", e.text);
    else
        plain_printf(stdout, "joined: the certificate is in %s\n", dir);
    return choose_exit_code(rc);
}

// A rank takes four descriptors.
static void raise_limits(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur == l.rlim_max)
        return;
    l.rlim_cur = l.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

int main(int argc, char **argv)
{
    struct worker_flags f = {.cpu_devices = -1,
                             .cuda_devices = -1,
                             .ready_fd = -1,
                             .parent_fd = -1,
                             .grace_ns = GRACE_S * CLOCK_S};
    struct err e = {0};
    sigset_t set;
    (void)signal(SIGPIPE, SIG_IGN);
    if (flag_asks_help(argc, argv)) {
        plain_puts(stdout, usage);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        plain_puts(stdout, "weft-worker " WEFT_VERSION "\n");
        return 0;
    }
    if (parse_flags(argc, argv, &f, &e)) {
        plain_error("weft-worker: %s", e.text);
        plain_error("  to do: see weft-worker --help");
        return WORKER_EXIT_CONFIG;
    }
    if (f.token)
        return run_join(&f);
    raise_limits();
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL); // before there are threads: they inherit it
    return run_worker(&f);
}
