// SPDX-License-Identifier: Apache-2.0
// The coordinator of a `weft run`; see own_coordinator.h.
#include "coordinator/cli/own_coordinator.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/system.h"

enum { LAST_NOTICES_S = 5 };  // for those of the run's end: no other process may come to send them
enum { LOG_BYTES = 4 << 20 }; // a larger log is renamed before more is written

bool own_coordinator_find(const char *folder, int *fd, char address[OWN_ADDRESS])
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    *fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(address, OWN_ADDRESS, "unix:/proc/self/fd/%d/sock", *fd);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", address + strlen("unix:"));
    int s = *fd < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = s >= 0 && !connect(s, (const struct sockaddr *)(void *)&to, sizeof to);
    system_close(&s);
    if (!there)
        system_close(fd);
    return there;
}

static int open_log(struct own_coordinator *o, const char *folder, struct err *e)
{
    struct stat st;
    if (!fstatat(o->folder, "log", &st, 0) && st.st_size > LOG_BYTES)
        (void)renameat(o->folder, "log", o->folder, "log.1");
    o->log = openat(o->folder, "log", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (o->log < 0)
        return err_errno(e, ERR_IO, "%s/log", folder);
    log_to(o->log);
    return 0;
}

static void *run_coordinator(void *arg)
{
    struct own_coordinator *o = arg;
    if (coord_daemon_run(o->daemon, &o->why)) {
        log_error("coordinator", "%s", o->why.text);
        if (o->broken >= 0)
            (void)eventfd_write(o->broken, 2);
    }
    (void)eventfd_write(o->over, 1);
    return NULL;
}

int own_coordinator_open(struct own_coordinator *o, const char *folder, int broken, struct err *e)
{
    *o = (struct own_coordinator){.folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC),
                                  .stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                  .over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                  .broken = broken,
                                  .log = -1,
                                  .listen = o->listen,
                                  .tls_dir = o->tls_dir,
                                  .notify = o->notify,
                                  .nnotify = o->nnotify};
    if (o->folder < 0 || o->stop < 0 || o->over < 0)
        return err_errno(e, ERR_IO, "%s", folder);
    snprintf(o->address, sizeof o->address, "unix:/proc/self/fd/%d/sock", o->folder);
    o->c = (struct coord_daemon_config){.state = folder,
                                        .locked = true,
                                        .listen = {o->address, o->listen},
                                        .nlisten = o->listen ? 2 : 1,
                                        .tls_dir = o->tls_dir,
                                        .notify = o->notify,
                                        .nnotify = o->nnotify,
                                        .last_notices_ns = LAST_NOTICES_S * CLOCK_S,
                                        .stop = o->stop};
    int rc = open_log(o, folder, e);
    rc = rc ? rc : coord_daemon_open(&o->c, &o->daemon, e);
    if (!rc && pthread_create(&o->thread, NULL, run_coordinator, o))
        rc = err_set(e, ERR_IO, "cannot start the coordinator's thread");
    o->runs = !rc;
    return rc;
}

void own_coordinator_stop(struct own_coordinator *o)
{
    if (o->runs)
        (void)eventfd_write(o->stop, 1);
}

static void join_thread(struct own_coordinator *o)
{
    if (o->runs)
        pthread_join(o->thread, NULL);
    o->runs = false;
}

void own_coordinator_unsent(struct own_coordinator *o, struct buf *to)
{
    join_thread(o);
    if (o->daemon)
        coord_daemon_unsent(o->daemon, to);
}

void own_coordinator_close(struct own_coordinator *o)
{
    own_coordinator_stop(o);
    join_thread(o);
    coord_daemon_close(o->daemon);
    if (o->log > 0) {
        log_to(STDERR_FILENO);
        close(o->log);
    }
    if (o->folder > 0)
        close(o->folder);
    if (o->stop > 0)
        close(o->stop);
    if (o->over > 0)
        close(o->over);
    *o = (struct own_coordinator){.why = o->why};
}
