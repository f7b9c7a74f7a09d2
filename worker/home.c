// SPDX-License-Identifier: Apache-2.0
// The worker's folder. See home.h.
#include "worker/home.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/system.h"
#include "common/base/url.h"

// ---- the folder ----

static int resolve_path(const char *path, char *out, size_t size, struct err *e)
{
    char real[PATH_MAX];
    if (url_refuse(path, e))
        return ERR_INVALID;
    if (!realpath(path, real))
        return err_errno(e, ERR_INVALID, "cannot find %s", path);
    if (snprintf(out, size, "%s", real) >= (int)size || strlen(real) > size - 300)
        return err_set(e, ERR_INVALID, "the path %s is too long", real);
    return 0;
}

// Reads the first line of a file of this folder: "" when there is no such file.
static int read_line(const struct home *h, const char *name, char *out, size_t size, struct err *e)
{
    int rc = folder_read(h->dir, name, out, size, e);
    out[strcspn(out, "\n")] = 0;
    return rc == ERR_NOTFOUND ? 0 : rc;
}

int home_open(struct home *h, const char *dir, struct err *e)
{
    *h = (struct home){.lock = -1};
    int rc = folder_make(dir, e);
    rc = rc ? rc : resolve_path(dir, h->dir, sizeof h->dir, e);
    rc = rc ? rc : folder_lock(h->dir, &h->lock, e);
    rc = rc ? rc : home_mark_attached(h, false, e); // one that was killed has left it
    rc = rc ? rc : read_line(h, "host", h->host, sizeof h->host, e);
    rc = rc ? rc : read_line(h, "cluster", h->cluster, sizeof h->cluster, e);
    if (!rc && !h->host[0]) {
        rc = entropy_id(h->host, e);
        rc = rc ? rc : folder_write(h->dir, "host", h->host, FOLDER_DURABLE, e);
    }
    if (rc)
        home_close(h);
    return rc;
}

void home_close(struct home *h)
{
    system_close(&h->lock);
}

int home_remember(struct home *h, const char *cluster, struct err *e)
{
    if (snprintf(h->cluster, sizeof h->cluster, "%s", cluster) >= (int)sizeof h->cluster)
        return err_set(e, ERR_DATA, "the cluster's id has %zu characters, which is too long",
                       strlen(cluster));
    return folder_write(h->dir, "cluster", cluster, FOLDER_DURABLE, e);
}

int home_mark_attached(const struct home *h, bool is, struct err *e)
{
    char path[sizeof h->dir + 16];
    snprintf(path, sizeof path, "%s/attached", h->dir);
    if (!is && unlink(path) && errno != ENOENT)
        return err_errno(e, ERR_IO, "cannot remove %s", path);
    int fd = is ? open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (is && fd < 0)
        return err_errno(e, ERR_IO, "cannot make %s", path);
    system_close(&fd);
    return 0;
}

int home_folder(const struct home *h, const char *name, const char *given, char *out, size_t size,
                struct err *e)
{
    char path[PATH_MAX];
    if (given)
        return resolve_path(given, out, size, e);
    snprintf(path, sizeof path, "%s/%s", h->dir, name);
    int rc = folder_make(path, e);
    return rc ? rc : resolve_path(path, out, size, e);
}
