// SPDX-License-Identifier: Apache-2.0
// The coordinator of a `weft run`; see own_run.h.
#include "coordinator/cli/own_run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "coordinator/cli/own_daemons.h"

struct own_run {
    int lock; // of the folder
    struct own_daemons daemons;
};
enum {
    GRACE_MS = 5000,
    CHANGE_S = 10, // for a run that is beginning or ending
    POLL_MS = 20,
};

bool own_run_is_folder(const char *address)
{
    struct stat st;
    if (strncmp(address, "unix:", strlen("unix:")) == 0 || strstr(address, "://"))
        return false;
    return strchr(address, '/') || (stat(address, &st) == 0 && S_ISDIR(st.st_mode));
}

static int check_folder(const char *root, struct err *e)
{
    char path[PATH_MAX + 40];
    snprintf(path, sizeof path, "%s/job", root);
    if (access(path, F_OK))
        return err_set(e, ERR_INVALID,
                       "%s is no folder of `weft run`: name .weft/NAME beside its job file", root);
    return 0;
}

// A coordinator that is started for a question finds what that of the run has written.
static int check_database(const char *root, struct err *e)
{
    char path[PATH_MAX + 40];
    snprintf(path, sizeof path, "%s/coordinator/weft.db", root);
    if (access(path, F_OK))
        return err_errno(e, ERR_NOTFOUND, "what the coordinator of that run knew is not there: %s",
                         path);
    return 0;
}

// The address of the run that holds the folder's lock. False: it does not listen yet, or no longer.
static bool find_living(const char *root, char *address, size_t size)
{
    char mark[PATH_MAX + 20], sockets[200], path[240];
    snprintf(mark, sizeof mark, "%s/sockets", root);
    ssize_t n = readlink(mark, sockets, sizeof sockets - 1);
    if (n <= 0)
        return false;
    sockets[n] = 0;
    snprintf(path, sizeof path, "%s/c.sock", sockets);
    if (!daemons_listen(path))
        return false;
    snprintf(address, size, "unix:%s", path);
    return true;
}

// Takes the lock, or finds the run that has it.
static int lock_or_find(const char *root, int *lock, char *address, size_t size, struct err *e)
{
    int64_t until = clock_mono_ns() + CHANGE_S * CLOCK_S;
    for (;;) {
        int rc = folder_lock(root, lock, e);
        if (rc != ERR_EXISTS)
            return rc;
        if (find_living(root, address, size))
            return 0;
        if (clock_mono_ns() >= until)
            return err_wrap(e, "its coordinator does not listen");
        *e = (struct err){0};
        clock_sleep_ms(POLL_MS);
    }
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
    struct own_run *r = heap_alloc(sizeof *r);
    rc = lock_or_find(root, &r->lock, address, size, e);
    if (rc || r->lock < 0) { // another's, or nobody's
        free(r);
        return rc;
    }
    rc = check_database(root, e);
    if (rc) {
        close(r->lock);
        free(r);
        return rc;
    }
    rc = daemons_start(&r->daemons, root, "cpu", 0, e);
    rc = rc ? rc : daemons_await_coordinator(&r->daemons, e);
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
