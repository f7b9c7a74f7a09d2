// SPDX-License-Identifier: Apache-2.0
// weft-worker: the daemon of one host. It finds the host's devices, attaches to the coordinator and
// runs the ranks that are placed on it; it never touches a device itself.
//
// Errors travel up as values and are logged here, once. Exit codes: 0 asked to stop · 70 internal,
// restart me · 76 fenced, 78 configuration: do not restart.
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/folder.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "common/base/system.h"
#include "common/rpc/coordinator_address.h"
#include "worker/join_cluster.h"
#include "worker/worker_daemon.h"
#include "worker/worker_setup.h"

static const char usage[] =
    "usage: weft-worker [flags]\n"
    "       weft-worker join TOKEN --coordinator ADDR [--state DIR] [--tls DIR] [--name N]\n"
    "       weft-worker join --token FILE …            FILE holds the token; -: standard input\n"
    "\n"
    "  --coordinator ADDR     unix:/path or HOST:PORT; else WEFT_COORDINATOR, MASTER_ADDR and\n"
    "                         MASTER_PORT, what Slurm or Kubernetes set, or the default socket\n"
    "  --state DIR            this worker's own folder; default /var/lib/weft/worker for root,\n"
    "                         else $XDG_STATE_HOME/weft/worker\n"
    "  --tls DIR              ca.pem, worker.pem, worker.key; default DIR/tls of --state, if "
    "there\n"
    "  --name N               what people call this host; default its host name. Of join: in\n"
    "                         the certificate alone, where the token names no host\n"
    "  --address HOST         what other hosts' ranks reach this one's by, without a port; it may\n"
    "                         be a NAT's. Default: the local address of the route to the\n"
    "                         coordinator, else of the default route\n"
    "  --rack R               hosts of a rack are placed side by side\n"
    "  --cpu-devices N        virtual CPU devices; default the cores\n"
    "  --cuda-devices N       the first N GPUs, 0: none; default all that are found\n"
    "  --data-root DIR        submitted jobs read data beneath it; default STATE/data\n"
    "  --checkpoint-root DIR  and keep checkpoints beneath it; default STATE/checkpoints\n"
    "  --grace D              for SIGTERM's drain (90s, 500ms, 2m); default 90s\n"
    "  --rank PATH            weft-rank; default the one beside this program\n"
    "  --sink NAME=COMMAND    a program that gets the metrics of jobs that name it in "
    "metrics.sinks\n"
    "  --share TEXT           hosts with the same TEXT share memory; default: this machine\n";

struct worker_flags {
    struct worker_options o;
    const char *token, *token_file;
    bool joins;
};

// ---- flags ----

#define AT(member) offsetof(struct worker_flags, o.member)
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
    {"grace", FLAG_DURATION, AT(grace_ns), 0, 0, 0},
    {"rank", FLAG_TEXT, AT(rank), 0, 0, 0},
    {"share", FLAG_TEXT, AT(share), 0, 0, 0},
    {"sink", FLAG_LIST, AT(sinks), 0, SINKS_MAX, AT(nsinks)},
    {"token", FLAG_TEXT, offsetof(struct worker_flags, token_file), 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int parse_flags(int argc, char **argv, struct worker_flags *f, struct err *e)
{
    int rest, rc = flags_read(rows, ROWS, argc, argv, f, &rest, e);
    if (!rc && rest < argc && !strcmp(argv[rest], "join")) {
        if (argc - rest != (f->token_file ? 1 : 2))
            return err_set(e, ERR_INVALID, "join takes one TOKEN, or --token FILE");
        f->token = f->token_file ? NULL : argv[rest + 1];
        f->joins = true;
        rest = argc;
    }
    if (!rc && f->token_file && !f->joins)
        return err_set(e, ERR_INVALID, "--token is for join");
    if (!rc && rest < argc) {
        static const char *const verbs[] = {"join"};
        bool near = suggest(argv[rest], verbs, 1) != NULL;
        rc = err_set(e, ERR_INVALID, "unexpected argument '%s'%s", argv[rest],
                     near ? "; did you mean join?" : "");
    }
    return rc;
}

// ---- the two verbs ----

// 78 (EX_CONFIG) where the user has to mend something, so that no restart is tried.
static int choose_exit_code(int rc)
{
    bool config = rc == ERR_INVALID || rc == ERR_EXISTS || rc == ERR_NOTFOUND || rc == ERR_REFUSED;
    return rc == 0 ? 0 : config ? WORKER_EXIT_CONFIG : WORKER_EXIT_INTERNAL;
}

struct running {
    struct worker_daemon *daemon;
    int signals;
};

static void on_signal(void *ctx, uint32_t events)
{
    struct running *r = ctx;
    struct signalfd_siginfo info;
    (void)events;
    while (read(r->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        log_info("worker", "asked to stop by signal %u", info.ssi_signo);
        worker_daemon_stop(r->daemon);
    }
}

static int run_worker(const struct worker_flags *f)
{
    static struct worker_setup w;
    struct running r = {.signals = -1};
    struct poll_loop *loop = NULL;
    struct poll_loop_source *none;
    struct err e = {0};
    int rc = system_read_signals((const int[]){SIGTERM, SIGINT, 0}, &r.signals, &e);
    rc = rc ? rc : worker_setup_open(&f->o, &w, &e);
    rc = rc ? rc : poll_loop_open(&loop, &e);
    rc = rc ? rc : worker_daemon_open(&w.c, loop, &r.daemon, &e);
    rc = rc ? rc : poll_loop_add(loop, r.signals, EPOLLIN, on_signal, &r, &none, &e);
    while (!rc && worker_daemon_turn(r.daemon))
        ;
    if (rc)
        log_error("worker", "%s", e.text);
    int code = worker_daemon_close(r.daemon);
    poll_loop_close(loop);
    worker_setup_close(&w);
    return rc ? choose_exit_code(rc) : code;
}

static int read_token(const struct worker_flags *f, struct buf *out, struct err *e)
{
    enum { TOKEN_FILE_MAX = 4096 };
    const char *file = strcmp(f->token_file, "-") ? f->token_file : "/dev/stdin";
    return folder_read_whole(AT_FDCWD, file, false, TOKEN_FILE_MAX, out, e);
}

static int run_join(const struct worker_flags *f)
{
    struct home h = {.lock = -1};
    struct err e = {0};
    struct buf token = {0};
    char address[300], dir[WORKER_PATH], name[128];
    int rc = f->token_file ? read_token(f, &token, &e) : 0;
    rc = rc ? rc : home_open(&h, f->o.state, &e); // a running worker reads the files: not under it
    rc = rc ? rc : coordinator_address(f->o.coordinator, address, sizeof address, &e);
    worker_choose_name(&f->o, name, sizeof name);
    snprintf(dir, sizeof dir, "%s%s", f->o.tls ? f->o.tls : h.dir, f->o.tls ? "" : "/tls");
    if (!rc)
        rc = join_cluster(f->token ? f->token : buf_str(&token), address, dir, JOIN_LOOK_S,
                          f->o.name, name, &e);
    home_close(&h);
    buf_clear(&token);
    if (rc)
        plain_error("weft-worker: cannot join: %s", e.text);
    else
        plain_printf(stdout, "joined: the certificate is in %s\n", dir);
    return choose_exit_code(rc);
}

int main(int argc, char **argv)
{
    struct worker_flags f = {
        .o = {.cpu_devices = -1, .cuda_devices = -1, .grace_ns = WORKER_GRACE_S * CLOCK_S}};
    struct err e = {0};
    char state[4000];
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
    if (!f.o.state && folder_find_state("worker", state, sizeof state, &e)) {
        log_error("worker", "%s", e.text);
        return WORKER_EXIT_CONFIG;
    }
    f.o.state = f.o.state ? f.o.state : state;
    if (f.joins)
        return run_join(&f);
    system_raise_limits();
    return run_worker(&f);
}
