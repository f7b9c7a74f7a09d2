// SPDX-License-Identifier: Apache-2.0
// The file that the agents of an allocation find their leader by; see leader_file.h.
#include "coordinator/cli/leader_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "common/base/hash.h"
#include "coordinator/cli/run_file.h"

#define FIRST "weft leader 1\n"
enum { FILE_MAX = 8192, MAC = 32 };

int leader_secret_read(struct leader_secret *out, struct err *e)
{
    const char *file = getenv("WEFT_SECRET_FILE");
    struct buf text = {0};
    *out = (struct leader_secret){0};
    if (!file || !*file)
        return 0;
    int rc = folder_read_whole(AT_FDCWD, file, false, LEADER_SECRET_MAX, &text, e);
    size_t n = text.len;
    while (n && strchr("\r\n", text.data[n - 1]))
        n--;
    if (!rc && (n < LEADER_SECRET_MIN || memchr(text.data, 0, n)))
        rc = err_set(e, ERR_INVALID, "%s holds no text of at least %d characters", file,
                     LEADER_SECRET_MIN);
    else if (rc)
        rc = ERR_INVALID;
    if (rc)
        err_wrap(e, "WEFT_SECRET_FILE");
    else
        memcpy(out->text, text.data, n);
    buf_clear(&text);
    return rc;
}

static void make_mac(const struct leader_secret *s, const char *text, size_t len,
                     char out[2 * MAC + 1])
{
    unsigned char mac[MAC];
    hmac_sha256(s->text, strlen(s->text), text, len, mac);
    hex_print(mac, sizeof mac, out);
}

static void make_end_mac(const struct leader_secret *s, const char *id, int code,
                         char out[2 * MAC + 1])
{
    char text[64];
    int n = snprintf(text, sizeof text, "ended %d %s", code, id);
    make_mac(s, text, (size_t)n, out);
}

static bool macs_equal(const char *a, const char *b)
{
    int differs = 0;
    for (int i = 0; i < 2 * MAC; i++)
        differs |= a[i] ^ b[i];
    return !differs;
}

// The same in both directions: bytes that nobody without the secret knows, and that no other leader's
// file has, are laid over the token.
static void seal_token(const struct leader_secret *s, const char *id, unsigned char *token,
                       size_t len)
{
    for (size_t at = 0; at < len; at += MAC) {
        unsigned char pad[MAC];
        char what[96];
        int n = snprintf(what, sizeof what, "token %s %zu", id, at);
        hmac_sha256(s->text, strlen(s->text), what, (size_t)n, pad);
        for (size_t i = 0; i < MAC && at + i < len; i++)
            token[at + i] ^= pad[i];
    }
}

void leader_file_print(const struct leader_file *f, const struct leader_secret *secret,
                       struct buf *out)
{
    unsigned char token[TLS_TOKEN_MAX] = {0};
    char hex[2 * TLS_TOKEN_MAX + 1], mac[2 * MAC + 1];
    size_t start = out->len, n = strlen(f->token);
    memcpy(token, f->token, n);
    if (*secret->text)
        seal_token(secret, f->id, token, n);
    hex_print(token, n, hex);
    buf_printf(out, FIRST "allocation %s\nid %s\ntoken %s\n", f->allocation, f->id, hex);
    for (int i = 0; i < f->naddresses; i++)
        buf_printf(out, "address %s\n", f->address[i]);
    make_mac(secret, out->data + start, out->len - start, mac);
    buf_printf(out, "mac %s\n", mac);
    if (f->ended >= 0) {
        make_end_mac(secret, f->id, f->ended, mac);
        buf_printf(out, "ended %d %s\n", f->ended, mac);
    }
}

// ---- reading ----

// Takes the line "NAME VALUE" off *at. ERR_DATA: another one stands there, or VALUE is too long.
static int take_line(const char **at, const char *name, char *out, size_t size, struct err *e)
{
    size_t n = strlen(name), len = strcspn(*at, "\n");
    if (strncmp(*at, name, n) != 0 || (*at)[n] != ' ' || !(*at)[len] || len - n - 1 >= size)
        return err_set(e, ERR_DATA, "it has no whole line '%s'", name);
    memcpy(out, *at + n + 1, len - n - 1);
    out[len - n - 1] = 0;
    *at += len + 1;
    return 0;
}

static int take_token(const char *hex, const struct leader_secret *secret, struct leader_file *out,
                      struct err *e)
{
    size_t n = strlen(hex) / 2;
    if (n >= sizeof out->token || !hex_is(hex, 2 * n))
        return err_set(e, ERR_DATA, "its token is none");
    for (size_t i = 0; i < n; i++)
        out->token[i] = (char)(hex_digit(hex[2 * i]) * 16 + hex_digit(hex[2 * i + 1]));
    out->token[n] = 0;
    if (*secret->text)
        seal_token(secret, out->id, (unsigned char *)out->token, n);
    return 0;
}

// What stands behind the mac. One that is not whole says nothing yet.
static void take_end(const char *at, const struct leader_secret *secret, struct leader_file *out)
{
    char end[128], mac[2 * MAC + 1];
    if (take_line(&at, "ended", end, sizeof end, NULL))
        return;
    char *space = strchr(end, ' ');
    if (!space || space == end || space - end > 3 ||
        strspn(end, "0123456789") != (size_t)(space - end) || !hex_is(space + 1, 2 * (size_t)MAC))
        return;
    int code = atoi(end);
    make_end_mac(secret, out->id, code, mac);
    if (macs_equal(mac, space + 1))
        out->ended = code;
}

int leader_file_parse(const char *text, const struct leader_secret *secret, struct leader_file *out,
                      struct err *e)
{
    char hex[2 * TLS_TOKEN_MAX + 1], said[2 * MAC + 1], mac[2 * MAC + 1];
    const char *at = text + strlen(FIRST);
    *out = (struct leader_file){.ended = -1};
    if (strncmp(text, FIRST, strlen(FIRST)) != 0)
        return err_set(e, ERR_DATA, "it is no leader's file of this version");
    int rc = take_line(&at, "allocation", out->allocation, sizeof out->allocation, e);
    rc = rc ? rc : take_line(&at, "id", out->id, sizeof out->id, e);
    rc = rc ? rc : take_line(&at, "token", hex, sizeof hex, e);
    while (!rc && strncmp(at, "address ", 8) == 0) {
        if (out->naddresses == LEADER_ADDRESSES)
            return err_set(e, ERR_DATA, "it has more than %d addresses", LEADER_ADDRESSES);
        rc = take_line(&at, "address", out->address[out->naddresses], LEADER_ADDRESS, e);
        out->naddresses += !rc;
    }
    const char *end = at;
    if (rc || (rc = take_line(&at, "mac", said, sizeof said, e)))
        return rc;
    make_mac(secret, text, (size_t)(end - text), mac);
    if (!hex_is(said, 2 * (size_t)MAC) || !macs_equal(mac, said))
        return err_set(e, ERR_DATA,
                       "its mac is wrong: it is torn, or WEFT_SECRET_FILE is another there");
    if (!hex_is(out->id, ID_LEN - 1))
        return err_set(e, ERR_DATA, "its id is none");
    take_end(at, secret, out);
    return take_token(hex, secret, out, e);
}

// ---- on the storage ----

// ROOT/.weft is to be this user's alone where nothing but that says whose file lies in it.
static int open_file(const char *root, const char *name, const struct leader_secret *secret,
                     int flags, int *fd, struct err *e)
{
    char file[128];
    struct stat st;
    int dir, rc = folder_open(root, ".weft", !*secret->text, &dir, e);
    if (rc)
        return rc;
    snprintf(file, sizeof file, "%s.leader", name);
    *fd = openat(dir, file, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int why = errno;
    close(dir);
    errno = why;
    if (*fd < 0)
        return why == ENOENT || why == ESTALE
                   ? err_set(e, ERR_NOTFOUND, "there is no %s/.weft/%s", root, file)
                   : err_errno(e, ERR_INVALID, "cannot open %s/.weft/%s", root, file);
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode) ||
        (!*secret->text && (st.st_uid != geteuid() || st.st_mode & 077))) {
        close(*fd);
        *fd = -1;
        return err_set(e, ERR_INVALID,
                       "%s/.weft/%s is not a file of this user's alone (0600): it is not believed",
                       root, file);
    }
    return 0;
}

int leader_file_write(const char *root, const char *name, const struct leader_secret *secret,
                      const struct leader_file *f, struct err *e)
{
    struct buf text = {0};
    leader_file_print(f, secret, &text);
    int rc = run_file_write(root, name, "leader", !*secret->text, text.data, text.len, e);
    buf_clear(&text);
    return rc;
}

int leader_file_read(const char *root, const char *name, const struct leader_secret *secret,
                     struct leader_file *out, struct err *e)
{
    struct buf text = {0};
    int fd, rc = open_file(root, name, secret, O_RDONLY, &fd, e);
    if (rc)
        return rc;
    rc = folder_read_fd(fd, name, FILE_MAX, &text, e);
    close(fd);
    if (!rc && memchr(text.data ? text.data : "", 0, text.len))
        rc = err_set(e, ERR_DATA, "it is no text");
    if (!rc)
        rc = leader_file_parse(buf_str(&text), secret, out, e);
    if (rc)
        err_wrap(e, "%s/.weft/%s.leader", root, name);
    buf_clear(&text);
    return rc;
}

int leader_file_end(const char *root, const char *name, const struct leader_secret *secret,
                    const char *id, int code, struct err *e)
{
    struct leader_file f;
    char line[128], mac[2 * MAC + 1];
    int fd, rc = leader_file_read(root, name, secret, &f, e);
    if (rc || strcmp(f.id, id) != 0)
        return rc ? rc : err_set(e, ERR_EXISTS, "another leader's file lies there");
    make_end_mac(secret, id, code, mac);
    int n = snprintf(line, sizeof line, "ended %d %s\n", code, mac);
    rc = open_file(root, name, secret, O_WRONLY | O_APPEND, &fd, e);
    if (rc)
        return rc;
    if (write(fd, line, (size_t)n) != n || fsync(fd))
        rc = err_errno(e, ERR_IO, "cannot write to %s/.weft/%s.leader", root, name);
    close(fd);
    return rc;
}
