// SPDX-License-Identifier: Apache-2.0
// init, token, issue, renew; see certs.h.
#include "coordinator/certs.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/rpc/tls_ca.h"
#include "coordinator/coord_daemon.h"

enum { DAYS = 365, TTL_S = 24 * 3600 };

struct flags {
    const char *dir, *role, *out, *name;
    const char *san[TLS_SANS_MAX];
    int nsans, days, hosts;
    long ttl_s;
};

static int do_init(const struct flags *f, struct err *e)
{
    int rc = tls_ca_init(f->dir, f->san, f->nsans, e);
    if (rc)
        return rc;
    plain_printf(stdout,
                 "the cluster's authority is in %s\n"
                 "  start the coordinator with --tls %s\n"
                 "  your own certificate: %s/admin.pem and admin.key (weft --tls %s)\n"
                 "  a worker joins with: weft-coordinator token --tls %s\n",
                 f->dir, f->dir, f->dir, f->dir, f->dir);
    return 0;
}

static int do_token(const struct flags *f, struct err *e)
{
    char token[TLS_TOKEN_MAX];
    int rc = tls_token_make(f->dir, f->role ? f->role : "worker", clock_wall_ms() / 1000, f->ttl_s,
                            token, e);
    if (!rc)
        plain_printf(stdout, "%s\n", token);
    return rc;
}

static int do_issue(const struct flags *f, struct err *e)
{
    if (!f->name)
        return err_set(e, ERR_INVALID, "issue needs a NAME");
    if (!f->role)
        return err_set(e, ERR_INVALID,
                       "say what %s is: --role client (a user), worker (a host) or admin", f->name);
    char beside[PATH_MAX]; // the authority's own files have suffixes, a name has no folder yet
    if (snprintf(beside, sizeof beside, "%s/%s", f->dir, f->name) >= (int)sizeof beside)
        return err_set(e, ERR_INVALID, "the path %s is too long", f->dir);
    const char *out = f->out ? f->out : beside;
    const struct tls_issue what = {f->role, f->name, f->days, f->hosts};
    int rc = tls_ca_issue(f->dir, &what, out, e);
    if (!rc)
        plain_printf(stdout, "%s/%s.pem, %s.key and ca.pem, of %s, good for %d days\n", out,
                     f->role, f->role, f->name, f->days);
    return rc;
}

static int do_renew(const struct flags *f, struct err *e)
{
    int rc = tls_ca_renew_server(f->dir, f->san, f->nsans, e);
    if (!rc)
        plain_printf(stdout, "%s/server.pem is new; a running coordinator takes it up by itself\n",
                     f->dir);
    return rc;
}

static const struct verb {
    const char *name, *args, *doc;
    int (*run)(const struct flags *f, struct err *e);
} verbs[] = {
    {"init", "[--tls DIR] [--san NAME|ADDRESS]...",
     "make the cluster's authority, the server's and an admin's certificate", do_init},
    {"token", "[--tls DIR] [--role worker|client] [--ttl SECONDS]",
     "a join token, good once, for a day", do_token},
    {"issue",
     "[--tls DIR] --role client|worker|admin [--hosts N] [--days N] [--out DIR]\n"
     "                        NAME",
     "make NAME a certificate, in --out or DIR/NAME; a worker's is for one host, or for --hosts at "
     "a time",
     do_issue},
    {"renew", "[--tls DIR] [--san NAME|ADDRESS]...", "a new server certificate", do_renew},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void list_verbs(FILE *to)
{
    for (int i = 0; i < VERBS; i++)
        plain_printf(to, "  weft-coordinator %s %s\n      %s\n", verbs[i].name, verbs[i].args,
                     verbs[i].doc);
}

static int print_usage(const char *what)
{
    plain_error("weft-coordinator: %s", what);
    list_verbs(stderr);
    return EXIT_CONFIG;
}

static int parse_flags(int argc, char **argv, struct flags *f)
{
    enum { TLS = 256, SAN, ROLE, TTL, DAYS_FLAG, HOSTS, OUT };
    static const struct option names[] = {
        {"tls", required_argument, NULL, TLS},        {"san", required_argument, NULL, SAN},
        {"role", required_argument, NULL, ROLE},      {"ttl", required_argument, NULL, TTL},
        {"days", required_argument, NULL, DAYS_FLAG}, {"hosts", required_argument, NULL, HOSTS},
        {"out", required_argument, NULL, OUT},        {NULL, 0, NULL, 0},
    };
    int k;
    char *end = NULL;
    opterr = 0;
    while ((k = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (k == TLS)
            f->dir = optarg;
        else if (k == SAN && f->nsans < TLS_SANS_MAX)
            f->san[f->nsans++] = optarg;
        else if (k == ROLE)
            f->role = optarg;
        else if (k == TTL && (f->ttl_s = strtol(optarg, &end, 10)) > 0 && !*end)
            continue;
        else if (k == DAYS_FLAG && (f->days = (int)strtol(optarg, &end, 10)) > 0 && !*end)
            continue;
        else if (k == HOSTS && (f->hosts = (int)strtol(optarg, &end, 10)) > 0 && !*end)
            continue;
        else if (k == OUT)
            f->out = optarg;
        else
            return -1;
    }
    f->name = optind < argc ? argv[optind++] : NULL;
    return optind < argc ? -1 : 0;
}

int certs_main(int argc, char **argv)
{
    struct flags f = {.dir = getenv("WEFT_TLS"), .days = DAYS, .ttl_s = TTL_S};
    struct err e = {0};
    if (!f.dir || !*f.dir)
        f.dir = "/etc/weft/tls";
    for (int i = 0; i < VERBS; i++) {
        if (strcmp(argv[0], verbs[i].name) != 0)
            continue;
        if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
            list_verbs(stdout);
            return 0;
        }
        if (parse_flags(argc, argv, &f))
            return print_usage("a flag is wrong");
        int rc = verbs[i].run(&f, &e);
        if (rc)
            plain_error("weft-coordinator %s: %s", argv[0], e.text);
        return rc ? EXIT_CONFIG : 0;
    }
    return print_usage("no such verb");
}
