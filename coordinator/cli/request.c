// SPDX-License-Identifier: Apache-2.0
// Request ids that survive a killed client; see request.h.
#include "coordinator/cli/request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/hash.h"

enum { AT_ONCE = 16, FORGOTTEN_S = 23 * 3600 };

void request_random(char id[ID_LEN])
{
    struct err e;
    PRE(entropy_id(id, &e) == 0); // the kernel always has so few random bytes
}

// Whether the file that we locked is still the one of that name: its owner may just have removed
// it.
static bool is_current(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

static bool read_old(struct kept_request *r)
{
    char text[ID_LEN];
    struct stat st;
    if (pread(r->fd, text, sizeof text, 0) != (ssize_t)sizeof text || fstat(r->fd, &st))
        return false;
    text[ID_LEN - 1] = 0;
    if (!hex_is(text, ID_LEN - 1) || time(NULL) - st.st_mtime > FORGOTTEN_S)
        return false;
    memcpy(r->id, text, sizeof text);
    return true;
}

static int write_new(struct kept_request *r, struct err *e)
{
    char text[ID_LEN + 1];
    snprintf(text, sizeof text, "%s\n", r->id);
    if (ftruncate(r->fd, 0) || pwrite(r->fd, text, ID_LEN, 0) != ID_LEN)
        return err_errno(e, ERR_IO, "%s", r->path);
    return 0;
}

// Opens and locks the file. False: another submit of the same job holds it (EWOULDBLOCK), or an
// error.
static bool lock_file(struct kept_request *r)
{
    for (;;) {
        r->fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (r->fd < 0)
            return false;
        if (flock(r->fd, LOCK_EX | LOCK_NB) == 0 && is_current(r->fd, r->path))
            return true;
        bool busy = errno == EWOULDBLOCK;
        close(r->fd);
        r->fd = -1;
        if (busy)
            return false;
    }
}

int request_begin(struct kept_request *r, const char *address, const char *text, struct err *e)
{
    struct buf deed = {0};
    char name[65];
    *r = (struct kept_request){.fd = -1};
    request_random(r->id);
    buf_printf(&deed, "%s\n%s", address, text);
    sha256_hex(deed.data, deed.len, name);
    buf_clear(&deed);
    char dir[400];
    int rc = folder_find_home("XDG_STATE_HOME", ".local/state", "weft/submit", dir, sizeof dir, e);
    rc = rc ? rc : folder_make(dir, e);
    if (rc)
        return rc;
    for (int i = 0; i < AT_ONCE; i++) {
        snprintf(r->path, sizeof r->path, i ? "%s/%s.%d" : "%s/%s", dir, name, i);
        errno = 0;
        if (!lock_file(r)) {
            if (errno && errno != EWOULDBLOCK)
                return err_errno(e, ERR_IO, "%s", r->path);
            continue;
        }
        r->again = read_old(r);
        return r->again ? 0 : write_new(r, e);
    }
    return err_set(e, ERR_LIMIT, "%d submits of this job at once", AT_ONCE);
}

void request_end(struct kept_request *r)
{
    if (r->fd < 0)
        return;
    unlink(r->path);
    close(r->fd);
    r->fd = -1;
}
