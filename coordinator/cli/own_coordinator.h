// SPDX-License-Identifier: Apache-2.0
// The coordinator of a `weft run` in this process, on a thread of its own: for the run itself, and
// for a verb that acts on one that is not under way. Inside coordinator/cli/ only.
//
//   FOLDER/weft.db   what it knows
//   FOLDER/log       what it logs, and the worker beside it
//   FOLDER/sock      where verbs of other processes call it
//
// Sockets have short names and folders need not: so ours is called by way of a descriptor of FOLDER,
// unix:/proc/self/fd/N/sock, in this process and in those that ask.
#pragma once
#include <pthread.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "coordinator/coord_daemon.h"

enum { OWN_ADDRESS = 64 };
struct own_coordinator {
    struct coord_daemon_config c;
    struct coord_daemon *daemon;
    pthread_t thread;
    bool runs; // the thread was started
    char address[OWN_ADDRESS];
    int folder, stop, log; // descriptors
    int over;              // an eventfd that is readable once it has stopped
    int broken;     // an eventfd of the owner's that gets a 2 when the loop fails; −1: none
    struct err why; // then, once it is closed
    // Set before it is opened, or null: where hosts of an allocation reach it, and its authority.
    const char *listen, *tls_dir;
    const char *const *notify; // receivers of notices, as coord_daemon.h has them
    int nnotify;
};
// Finds the coordinator that listens in FOLDER. `fd` gets the descriptor that its address needs, to be
// closed when it is called no more. False: none does, and then there is none.
bool own_coordinator_find(const char *folder, int *fd, char address[OWN_ADDRESS]);
// It listens when this returns. The caller holds FOLDER's lock, and has blocked the signals that it
// reads. Clear a zeroed struct with own_coordinator_close, after a failure too.
int own_coordinator_open(struct own_coordinator *o, const char *folder, int broken, struct err *e);
// Asks it to stop. Notices that were not tried yet it sends before, for 5 s at most; asked again it stops
// at once.
void own_coordinator_stop(struct own_coordinator *o);
// Waits until it has stopped. Appends how many notices were not sent, and to whom.
void own_coordinator_unsent(struct own_coordinator *o, struct buf *to);
void own_coordinator_close(struct own_coordinator *o);
