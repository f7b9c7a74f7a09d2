// SPDX-License-Identifier: Apache-2.0
// The authority's directory: init, issue, renew; see tls_ca.h. Tokens are tls_token.c, the joiner
// is tls_join.c.
//
// ca.pem is written last: while it is not there, an init that died halfway may be done again.
#include "common/rpc/tls_ca.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/rpc/tls_cert.h"

static const char *const local_names[] = {"localhost", "127.0.0.1", "::1"};
enum { LOCAL_NAMES = sizeof local_names / sizeof *local_names };

static bool is_san(const char *san)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-";
    unsigned char address[16];
    size_t n = strlen(san);
    return inet_pton(AF_INET6, san, address) == 1 ||
           (n > 0 && n < 254 && strspn(san, set) == n && !strchr(".-", *san));
}

// Gives the name to a key that is safe in its file by then: else the name would be lost with it.
static int give_name(const char *names, const char *name, EVP_PKEY *key, const char *dir,
                     const char *key_file, const char *key_pem, struct err *e)
{
    int rc = tls_name_check(names, name, key, e);
    rc = rc ? rc : folder_write(dir, key_file, key_pem, FOLDER_DURABLE, e);
    rc = rc ? rc : tls_name_give(names, name, key, e);
    return rc;
}

// Writes DIR/FILE.{key,pem}: of the key that is there already, else of a new one. With `chain` the
// authority's certificate follows the leaf, so that whoever connects sees it in the handshake. `names`
// is the authority's folder, which gives the name to the key; null: no name is given.
static int write_pair(const struct tls_pair *ca, const struct tls_leaf *leaf, bool chain,
                      const char *names, const char *dir, const char *file, struct err *e)
{
    struct tls_pair made = {0};
    struct buf key = {0}, cert = {0};
    char key_file[TLS_NAME_MAX + 8];
    snprintf(key_file, sizeof key_file, "%s.key", file);
    int rc = names ? tls_file_read(dir, key_file, &key, e) : ERR_NOTFOUND;
    bool kept = !rc;
    if (kept)
        rc = tls_key_parse(buf_str(&key), &made.key, e);
    else if (rc == ERR_NOTFOUND)
        rc = tls_key_new(&made.key, e);
    if (!rc)
        rc = tls_cert_make_leaf(ca, made.key, leaf, &made.cert, e);
    if (!rc)
        rc = tls_cert_print(made.cert, &cert, e);
    if (!rc && !kept)
        rc = tls_key_print(made.key, &key, e);
    if (!rc && chain)
        rc = tls_cert_print(ca->cert, &cert, e);
    if (!rc && names)
        rc = give_name(names, leaf->name, made.key, dir, key_file, buf_str(&key), e);
    if (!rc)
        rc = tls_files_write(dir, file, buf_str(&key), buf_str(&cert), e);
    tls_pair_clear(&made);
    tls_wipe(&key);
    buf_clear(&cert);
    return rc;
}

static int write_server(const struct tls_pair *ca, const char *dir, const char *const *sans,
                        int nsans, struct err *e)
{
    const char *all[TLS_SANS_MAX + LOCAL_NAMES];
    if (nsans > TLS_SANS_MAX)
        return err_set(e, ERR_LIMIT, "over %d names of the server", TLS_SANS_MAX);
    memcpy(all, local_names, sizeof local_names);
    for (int i = 0; i < nsans; i++) {
        if (!is_san(sans[i]))
            return err_set(e, ERR_INVALID, "'%s' is no name or address of a server", sans[i]);
        all[LOCAL_NAMES + i] = sans[i];
    }
    struct tls_leaf leaf = {.role = "coordinator",
                            .name = "coordinator",
                            .sans = all,
                            .nsans = LOCAL_NAMES + nsans,
                            .now_s = clock_wall_ms() / 1000,
                            .days = TLS_LEAF_DAYS};
    return write_pair(ca, &leaf, true, NULL, dir, "server", e);
}

static int write_issued(const struct tls_pair *ca, const struct tls_issue *what, const char *names,
                        const char *dir, struct err *e)
{
    struct tls_leaf leaf = {.role = what->role,
                            .name = what->name,
                            .hosts = what->hosts,
                            .now_s = clock_wall_ms() / 1000,
                            .days = what->days > 0 ? what->days : TLS_LEAF_DAYS};
    return write_pair(ca, &leaf, false, names, dir, what->role, e);
}

static int write_ca_cert(const struct tls_pair *ca, const char *dir, struct err *e)
{
    struct buf pem = {0};
    int rc = tls_cert_print(ca->cert, &pem, e);
    rc = rc ? rc : folder_write(dir, "ca.pem", buf_str(&pem), FOLDER_DURABLE, e);
    buf_clear(&pem);
    return rc;
}

static int write_authority(const char *dir, const char *const *sans, int nsans, struct err *e)
{
    static const struct tls_issue admin = {.role = "admin", .name = "admin"};
    struct tls_pair ca = {0};
    struct buf key = {0};
    int rc = tls_key_new(&ca.key, e);
    rc = rc ? rc : tls_cert_make_ca(ca.key, clock_wall_ms() / 1000, &ca.cert, e);
    rc = rc ? rc : tls_key_print(ca.key, &key, e);
    rc = rc ? rc : folder_write(dir, "ca.key", buf_str(&key), FOLDER_DURABLE, e);
    rc = rc ? rc : write_server(&ca, dir, sans, nsans, e);
    rc = rc ? rc : write_issued(&ca, &admin, dir, dir, e);
    rc = rc ? rc : write_ca_cert(&ca, dir, e);
    tls_wipe(&key);
    tls_pair_clear(&ca);
    return rc;
}

int tls_ca_init(const char *dir, const char *const *sans, int nsans, struct err *e)
{
    int rc = folder_make(dir, e);
    if (rc)
        return rc;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot open %s", dir);
    if (flock(fd, LOCK_EX | LOCK_NB))
        rc = err_set(e, ERR_EXISTS, "somebody else makes an authority in %s", dir);
    else if (!faccessat(fd, "ca.pem", F_OK, 0))
        rc = err_set(e, ERR_EXISTS, "%s holds an authority already", dir);
    else
        rc = write_authority(dir, sans, nsans, e);
    close(fd);
    return rc;
}

int tls_ca_issue(const char *dir, const struct tls_issue *what, const char *dir_out, struct err *e)
{
    struct tls_pair ca;
    const char *role = what->role, *name = what->name;
    if (!tls_role_ok(role))
        return err_set(e, ERR_INVALID, "'%s' is no role: client, worker, admin are", role);
    if (!tls_name_ok(name) || !strcmp(name, "tokens") || !strcmp(name, "names")) // its own folders
        return err_set(e, ERR_INVALID, "'%.80s' is no name for a certificate", name);
    if (what->hosts > 1 && strcmp(role, "worker") != 0)
        return err_set(e, ERR_INVALID, "a number of hosts is for a worker's certificate");
    int rc = tls_pair_read(dir, &ca, e);
    if (rc)
        return rc;
    rc = folder_make(dir_out, e);
    rc = rc ? rc : write_ca_cert(&ca, dir_out, e);
    rc = rc ? rc : write_issued(&ca, what, dir, dir_out, e);
    tls_pair_clear(&ca);
    return rc;
}

int tls_ca_renew_server(const char *dir, const char *const *sans, int nsans, struct err *e)
{
    struct tls_pair ca;
    int rc = tls_pair_read(dir, &ca, e);
    if (rc)
        return rc;
    rc = write_server(&ca, dir, sans, nsans, e);
    tls_pair_clear(&ca);
    return rc;
}
