// SPDX-License-Identifier: Apache-2.0
// The coordinator of a `weft run`; see own_run.h.
#include "coordinator/cli/own_run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "coordinator/cli/own_daemons.h"

struct own_run {
    int lock; // of the folder
    struct own_daemons daemons;
};
enum { GRACE_MS = 5000 };

bool own_run_is_folder(const char *address)
{
    struct stat st;
    return strncmp(address, "unix:", strlen("unix:")) != 0 && stat(address, &st) == 0 &&
           S_ISDIR(st.st_mode);
}

static int check_folder(const char *root, struct err *e)
{
    char path[PATH_MAX + 40];
    snprintf(path, sizeof path, "%s/job", root);
    if (access(path, F_OK))
        return err_set(e, ERR_INVALID,
                       "%s is no folder of `weft run`: name .weft/NAME beside its job file", root);
    snprintf(path, sizeof path, "%s/coordinator/weft.db", root);
    if (access(path, F_OK))
        return err_errno(e, ERR_NOTFOUND, "what the coordinator of that run knew is not there: %s",
                         path);
    return 0;
}

// The address of the run that holds the folder's lock.
static int find_living(const char *root, char *address, size_t size, struct err *e)
{
    char mark[PATH_MAX + 20], sockets[200] = "";
    snprintf(mark, sizeof mark, "%s/sockets", root);
    ssize_t n = readlink(mark, sockets, sizeof sockets - 1);
    if (n < 0)
        return err_errno(e, ERR_PEER, "a run is only just beginning or ending: %s", mark);
    sockets[n] = 0;
    snprintf(address, size, "unix:%s/c.sock", sockets);
    return 0;
}

int own_run_open(const char *folder, struct own_run **out, char *address, size_t size,
                 struct err *e)
{
    char root[PATH_MAX];
    *out = NULL;
    if (!realpath(folder, root) || strlen(root) >= sizeof((struct own_daemons *)0)->root)
        return err_errno(e, ERR_INVALID, "%s", folder);
    int rc = check_folder(root, e);
    if (rc)
        return rc;
    struct own_run *r = calloc(1, sizeof *r);
    PRE(r != NULL);
    rc = folder_lock(root, &r->lock, e);
    if (rc) {
        free(r);
        return rc == ERR_EXISTS ? find_living(root, address, size, e) : rc;
    }
    rc = daemons_start_coordinator(&r->daemons, root, e);
    if (rc) {
        own_run_close(r);
        return rc;
    }
    snprintf(address, size, "%s", r->daemons.address);
    *out = r;
    return 0;
}

void own_run_close(struct own_run *r)
{
    if (!r)
        return;
    daemons_stop(&r->daemons, GRACE_MS);
    close(r->lock);
    free(r);
}
