// SPDX-License-Identifier: Apache-2.0
// The worker's folder; see home.h.
#include "worker/home.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int home_random(void *out, size_t len, struct err *e)
{
    if (getrandom(out, len, 0) != (ssize_t)len)
        return err_errno(e, ERR_INTERNAL, "cannot get random bytes");
    return 0;
}

int home_random_id(char out[33], struct err *e)
{
    unsigned char b[16];
    int rc = home_random(b, sizeof b, e);
    for (int i = 0; i < 16 && !rc; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
    return rc;
}

// ---- small files ----

static int sync_dir(const char *dir, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? err_errno(e, ERR_IO, "cannot sync %s", dir) : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int keep_text(const struct home *h, const char *name, const char *text, struct err *e)
{
    char path[PATH_MAX], tmp[PATH_MAX];
    size_t len = strlen(text);
    int rc = 0;
    snprintf(path, sizeof path, "%s/%s", h->dir, name);
    snprintf(tmp, sizeof tmp, "%s/.%s.new", h->dir, name);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot make %s", tmp);
    if (write(fd, text, len) != (ssize_t)len || fsync(fd))
        rc = err_errno(e, ERR_IO, "cannot write %s", tmp);
    close(fd);
    if (!rc && rename(tmp, path))
        rc = err_errno(e, ERR_IO, "cannot rename %s", tmp);
    return rc ? rc : sync_dir(h->dir, e);
}

// One line; "" when it is not there.
static int read_line(const struct home *h, const char *name, char *out, size_t size, struct err *e)
{
    char path[PATH_MAX];
    out[0] = 0;
    snprintf(path, sizeof path, "%s/%s", h->dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_errno(e, ERR_IO, "cannot open %s", path);
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    if (n < 0)
        return err_errno(e, ERR_IO, "cannot read %s", path);
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
    return 0;
}

// ---- the folder ----

static int make_all(const char *path, struct err *e)
{
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return err_set(e, ERR_INVALID, "the path %s is too long", path);
    for (char *p = strchr(at + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        if (mkdir(at, 0755) && errno != EEXIST)
            return err_errno(e, ERR_INVALID, "cannot make %s", at);
        *p = '/';
    }
    if (mkdir(at, 0700) && errno != EEXIST)
        return err_errno(e, ERR_INVALID, "cannot make %s", at);
    return 0;
}

static int resolve(const char *path, char *out, size_t size, struct err *e)
{
    char real[PATH_MAX];
    if (!realpath(path, real))
        return err_errno(e, ERR_INVALID, "cannot find %s", path);
    if (snprintf(out, size, "%s", real) >= (int)size || strlen(real) > size - 300)
        return err_set(e, ERR_INVALID, "the path %s is too long", real);
    return 0;
}

static int take_lock(struct home *h, struct err *e)
{
    char path[PATH_MAX], text[64];
    snprintf(path, sizeof path, "%s/lock", h->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, ERR_INVALID, "cannot open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        bool held = errno == EWOULDBLOCK;
        if (held)
            (void)read_line(h, "lock", text, sizeof text, NULL);
        close(fd);
        return held ? err_set(e, ERR_EXISTS, "%s is in use by the worker with pid %s", h->dir, text)
                    : err_set(e, ERR_IO, "cannot lock %s", path);
    }
    h->lock = fd;
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
        return err_errno(e, ERR_IO, "cannot write %s", path);
    return 0;
}

int home_open(struct home *h, const char *dir, struct err *e)
{
    *h = (struct home){.lock = -1};
    int rc = make_all(dir, e);
    rc = rc ? rc : resolve(dir, h->dir, sizeof h->dir, e);
    rc = rc ? rc : take_lock(h, e);
    rc = rc ? rc : read_line(h, "host", h->host, sizeof h->host, e);
    rc = rc ? rc : read_line(h, "cluster", h->cluster, sizeof h->cluster, e);
    if (!rc && !h->host[0]) {
        rc = home_random_id(h->host, e);
        rc = rc ? rc : keep_text(h, "host", h->host, e);
    }
    if (rc)
        home_close(h);
    return rc;
}

void home_close(struct home *h)
{
    if (h->lock >= 0)
        close(h->lock);
    h->lock = -1;
}

int home_remember(struct home *h, const char *cluster, struct err *e)
{
    if (snprintf(h->cluster, sizeof h->cluster, "%s", cluster) >= (int)sizeof h->cluster)
        return err_set(e, ERR_DATA, "a cluster's id of %zu characters", strlen(cluster));
    return keep_text(h, "cluster", cluster, e);
}

int home_folder(const struct home *h, const char *name, const char *given, char *out, size_t size,
                struct err *e)
{
    char path[PATH_MAX];
    if (given)
        return resolve(given, out, size, e);
    snprintf(path, sizeof path, "%s/%s", h->dir, name);
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_errno(e, ERR_INVALID, "cannot make %s", path);
    return resolve(path, out, size, e);
}
