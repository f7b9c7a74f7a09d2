// SPDX-License-Identifier: Apache-2.0
// weft-coordinator: the daemon that queues jobs, places them on the hosts that attach to it, and
// remembers everything in SQLite.
//
// Errors travel up as values and are logged here, once. Exit codes: 0 asked to stop · 70 internal,
// restart me · 78 configuration: do not restart.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/flag.h"
#include "common/base/folder.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "common/base/system.h"
#include "common/base/url.h"
#include "common/rpc/coordinator_address.h"
#include "coordinator/certs.h"
#include "coordinator/coord_daemon.h"
#include "coordinator/serve/planner_process.h"
#include "coordinator/serve/webhooks.h"

enum { PATH_LEN = 4000, LEASE_LEAST_MS = 100 };

static const char usage[] =
    "usage: weft-coordinator [flags]\n"
    "       weft-coordinator init|token|issue|renew --help\n"
    "\n"
    "  --state DIR       database and cluster id; default /var/lib/weft/coordinator for root, "
    "else\n"
    "                    $XDG_STATE_HOME/weft/coordinator\n"
    "  --listen ADDR     unix:/path or HOST:PORT (port 0: any), up to 8 times; default the socket\n"
    "                    $XDG_RUNTIME_DIR/weft/coordinator.sock, for root "
    "/run/weft/coordinator.sock\n"
    "  --http ADDR       /metrics, /healthz and /readyz, for this machine only: a loopback "
    "HOST:PORT,\n"
    "                    or unix:/path for this user alone\n"
    "  --probes ADDR     /healthz and /readyz, at any HOST:PORT\n"
    "  --tls DIR         the cluster's authority, made by init; needed beyond loopback\n"
    "  --lease D         after so long without a word a host is given up; default 10s\n"
    "  --notify NAME=URL a receiver of notices, which jobs name (notify: [NAME]); NAME=@FILE reads "
    "the\n"
    "                    URL from a file of mode 0600: a command line can be seen by others; up to "
    "16\n"
    "  --restored        the whole state folder was put back from a copy: believe what the jobs'\n"
    "                    checkpoint folders hold, and ask the hosts for jobs of since then\n";

struct coordinator_flags {
    struct coord_daemon_config c;
    const char *notify[WEBHOOKS_MAX];
    char state[PATH_LEN], socket[PATH_LEN];
};

#define AT(member) offsetof(struct coordinator_flags, c.member)
static const struct flag_row rows[] = {
    {"state", FLAG_TEXT, AT(state), 0, 0, 0},
    {"listen", FLAG_LIST, AT(listen), 0, LISTEN_MAX, AT(nlisten)},
    {"http", FLAG_TEXT, AT(http), 0, 0, 0},
    {"probes", FLAG_TEXT, AT(probes), 0, 0, 0},
    {"tls", FLAG_TEXT, AT(tls_dir), 0, 0, 0},
    {"lease", FLAG_DURATION, AT(lease_ns), LEASE_LEAST_MS, 0, 0},
    {"notify", FLAG_LIST, offsetof(struct coordinator_flags, notify), 0, WEBHOOKS_MAX, AT(nnotify)},
    {"restored", FLAG_SWITCH, AT(restored), 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

// Listens at the address that a client tries last, after all that its environment may say.
static int find_socket(struct coordinator_flags *f, struct err *e)
{
    char folder[PATH_LEN];
    int rc = coordinator_address_default(f->socket, sizeof f->socket, e);
    if (rc)
        return rc;
    f->c.listen[f->c.nlisten++] = f->socket;
    snprintf(folder, sizeof folder, "%s", f->socket + strlen("unix:"));
    *strrchr(folder, '/') = 0;
    return folder_make(folder, e)
               ? err_wrap(e, "no place for the default socket: give --listen, or set "
                             "XDG_RUNTIME_DIR to a folder of yours")
               : 0;
}

static int fill_defaults(struct coordinator_flags *f, struct err *e)
{
    int rc = 0;
    if (f->c.state && url_refuse(f->c.state, e))
        return err_wrap(e, "--state");
    if (!f->c.state) {
        rc = folder_find_state("coordinator", f->state, sizeof f->state, e);
        rc = rc ? rc : folder_make(f->state, e);
        f->c.state = f->state;
    }
    return rc || f->c.nlisten ? rc : find_socket(f, e);
}

static int exit_code(int rc)
{
    bool ours = rc == ERR_INVALID || rc == ERR_EXISTS || rc == ERR_NOTFOUND || rc == ERR_DATA;
    return !rc ? 0 : ours ? EXIT_CONFIG : EXIT_INTERNAL;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    static struct coordinator_flags f = {.c = {.stop = -1}};
    if (argc > 1 && argv[1][0] != '-')
        return certs_main(argc - 1, argv + 1);
    if (flag_asks_help(argc, argv)) {
        plain_puts(stdout, usage);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        plain_printf(stdout, "weft-coordinator %s\n", WEFT_VERSION);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--planner") == 0) // by planner_process.c alone
        return planner_process_main(strtoll(argv[2], NULL, 10));
    if (flags_read_all(rows, ROWS, argc, argv, &f, &e)) {
        plain_error("weft-coordinator: %s", e.text);
        plain_error("  to do: see weft-coordinator --help");
        return EXIT_CONFIG;
    }
    struct coord_daemon *d = NULL;
    f.c.notify = f.notify;
    system_raise_limits();
    int rc = system_read_signals((const int[]){SIGTERM, SIGINT, 0}, &f.c.stop, &e);
    rc = rc ? rc : fill_defaults(&f, &e);
    rc = rc ? rc : coord_daemon_open(&f.c, &d, &e);
    rc = rc ? rc : coord_daemon_run(d, &e);
    struct signalfd_siginfo info;
    if (!rc && read(f.c.stop, &info, sizeof info) == (ssize_t)sizeof info)
        log_info("coordinator", "asked to stop by pid %u", info.ssi_pid);
    coord_daemon_close(d);
    if (rc)
        log_error("coordinator", "%s", e.text);
    return exit_code(rc);
}
