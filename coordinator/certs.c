// SPDX-License-Identifier: Apache-2.0
// init, token, issue, renew; see certs.h.
#include "coordinator/certs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "common/rpc/tls_ca.h"
#include "coordinator/coord_daemon.h"

#define DEFAULT_DIR "/etc/weft/tls"
enum { DAYS = 365 };
#define TTL_NS (24 * 3600 * CLOCK_S)

struct cert_flags {
    const char *dir, *role, *out, *name;
    const char *san[TLS_SANS_MAX];
    int nsans, days, hosts;
    int64_t ttl_ns;
};

static int do_init(const struct cert_flags *f, struct err *e)
{
    int rc = tls_ca_init(f->dir, f->san, f->nsans, e);
    if (rc)
        return rc;
    plain_printf(stdout,
                 "the cluster's authority is in %s\n"
                 "  start the coordinator with --tls %s\n"
                 "  your own certificate: %s/admin.pem and admin.key (weft --tls %s)\n"
                 "  a worker joins with: weft-coordinator token --tls %s NAME\n",
                 f->dir, f->dir, f->dir, f->dir, f->dir);
    return 0;
}

// Joining is what workers do: no program takes another role's token.
static int check_token(const struct cert_flags *f, struct err *e)
{
    if (!f->name != !!f->hosts)
        return err_set(e, ERR_INVALID,
                       "say who joins with it: a host's NAME, or --hosts N for so many new hosts");
    if (!f->role || strcmp(f->role, "worker") == 0)
        return 0;
    return err_set(e, ERR_INVALID,
                   "--role %s: only a worker joins with a token; a user's certificate is made by: "
                   "weft-coordinator issue --role client NAME",
                   f->role);
}

static int do_token(const struct cert_flags *f, struct err *e)
{
    char token[TLS_TOKEN_MAX];
    const struct tls_token what = {"worker", f->name, f->hosts, f->ttl_ns / CLOCK_S};
    int rc = tls_token_make(f->dir, &what, clock_wall_ms() / 1000, token, e);
    if (rc)
        return rc;
    plain_printf(stdout, "%s\n", token);
    if (f->name && tls_name_is_taken(f->dir, f->name))
        plain_error(
            "%s has a certificate already: the token renews it, on the host that has its key",
            f->name);
    return 0;
}

static int check_issue(const struct cert_flags *f, struct err *e)
{
    if (!f->name)
        return err_set(e, ERR_INVALID, "issue needs a NAME");
    if (!f->role)
        return err_set(e, ERR_INVALID,
                       "say what %s is: --role client (a user), worker (a host) or admin", f->name);
    return 0;
}

static int do_issue(const struct cert_flags *f, struct err *e)
{
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

static int do_renew(const struct cert_flags *f, struct err *e)
{
    int rc = tls_ca_renew_server(f->dir, f->san, f->nsans, e);
    if (!rc)
        plain_printf(stdout, "%s/server.pem is new; a running coordinator takes it up by itself\n",
                     f->dir);
    return rc;
}

static const struct verb {
    const char *name, *args, *doc;
    int (*run)(const struct cert_flags *f, struct err *e);
    int (*check)(const struct cert_flags *f, struct err *e); // of the flags alone; null: nothing
} verbs[] = {
    {"init", "[--tls DIR] [--san NAME|ADDRESS]...",
     "make the cluster's authority, the server's and an admin's certificate", do_init, NULL},
    {"token", "[--tls DIR] [--ttl 24h] NAME | --hosts N",
     "a join token, good for a day: once, for the host NAME, or for N hosts whose names are new",
     do_token, check_token},
    {"issue",
     "[--tls DIR] --role client|worker|admin [--hosts N] [--days N] [--out DIR]\n"
     "                        NAME",
     "make NAME a certificate, in --out or DIR/NAME, renewed where its key is; a worker's is for "
     "one "
     "host, or for --hosts at a time",
     do_issue, check_issue},
    {"renew", "[--tls DIR] [--san NAME|ADDRESS]...", "a new server certificate", do_renew, NULL},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void list_verbs(FILE *to)
{
    for (int i = 0; i < VERBS; i++)
        plain_printf(to, "  weft-coordinator %s %s\n      %s\n", verbs[i].name, verbs[i].args,
                     verbs[i].doc);
    plain_puts(to, "  DIR is the authority's folder; else WEFT_TLS, else " DEFAULT_DIR "\n");
}

#define AT(member) offsetof(struct cert_flags, member)
static const struct flag_row rows[] = {
    {"tls", FLAG_TEXT, AT(dir), 0, 0, 0},
    {"san", FLAG_LIST, AT(san), 0, TLS_SANS_MAX, AT(nsans)},
    {"role", FLAG_TEXT, AT(role), 0, 0, 0},
    {"out", FLAG_TEXT, AT(out), 0, 0, 0},
    {"ttl", FLAG_SECONDS, AT(ttl_ns), 1000, 0, 0},
    {"days", FLAG_NUMBER, AT(days), 1, INT_MAX, 0},
    {"hosts", FLAG_NUMBER, AT(hosts), 1, INT_MAX, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int parse_flags(const struct verb *v, int argc, char **argv, struct cert_flags *f,
                       struct err *e)
{
    int rest, rc = flags_read(rows, ROWS, argc, argv, f, &rest, e);
    if (!rc && (v->run == do_issue || v->run == do_token) && rest < argc)
        f->name = argv[rest++];
    if (!rc && rest < argc)
        rc = err_set(e, ERR_INVALID, "unexpected argument '%s'", argv[rest]);
    return rc || !v->check ? rc : v->check(f, e);
}

static int refuse_verb(const char *word)
{
    const char *names[VERBS], *near;
    for (int i = 0; i < VERBS; i++)
        names[i] = verbs[i].name;
    near = suggest(word, names, VERBS);
    plain_error("weft-coordinator: no verb '%s'%s%s%s", word, near ? "; did you mean " : "",
                near ? near : "", near ? "?" : "");
    plain_error("  to do: init, token, issue and renew are those of certificates; without one it "
                "serves, see weft-coordinator --help");
    return EXIT_CONFIG;
}

static int run_verb(const struct verb *v, int argc, char **argv)
{
    struct cert_flags f = {.dir = getenv("WEFT_TLS"), .days = DAYS, .ttl_ns = TTL_NS};
    struct err e = {0};
    char ca[PATH_MAX];
    if (!f.dir || !*f.dir)
        f.dir = DEFAULT_DIR;
    int rc = parse_flags(v, argc, argv, &f, &e);
    bool parsed = !rc;
    if (parsed)
        rc = v->run(&f, &e);
    if (!rc)
        return 0;
    plain_error("weft-coordinator %s: %s", v->name, e.text);
    snprintf(ca, sizeof ca, "%s/ca.pem", f.dir);
    if (!parsed)
        plain_error("  to do: see weft-coordinator %s --help", v->name);
    else if (v->run != do_init && access(ca, F_OK))
        plain_error(
            "  to do: make the authority: weft-coordinator init --tls %s; or name its folder "
            "with --tls",
            f.dir);
    return EXIT_CONFIG;
}

int certs_main(int argc, char **argv)
{
    for (int i = 0; i < VERBS; i++) {
        if (strcmp(argv[0], verbs[i].name) != 0)
            continue;
        if (!flag_asks_help(argc, argv))
            return run_verb(&verbs[i], argc, argv);
        list_verbs(stdout);
        return 0;
    }
    return refuse_verb(argv[0]);
}
