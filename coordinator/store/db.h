// SPDX-License-Identifier: Apache-2.0
// The coordinator's database: the only place with SQL. One file, `weft.db`, WAL with
// synchronous=FULL: what db_commit returned for survives a power loss. Columns are real, so that
// people may read it with sqlite3 while the coordinator runs. Inside coordinator/ only.
//
// The file beside it, `lock`, is flocked for the store's life: a second coordinator is refused with
// the first one's pid. A database of another version is refused. One thread.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/id.h"
#include "common/rpc/rpc.h"
#include "coordinator/decide/row.h"

struct db;

#define DB_REMEDY                                                                              \
    "move weft.db and its -wal and -shm away and start again; jobs are then found again from " \
    "their checkpoints"

enum db_use {
    DB_OWN,    // DIR/lock is taken too
    DB_LOCKED, // the caller holds it
    DB_READ,   // nothing is made or changed, and all is read as it stood at the first reading
};
// Makes DIR (0700) and the database, and checks all pages of one that is there. ERR_EXISTS: in use, by
// the pid that the message names. ERR_DATA, here and below: damaged; the message says what to do. On a
// full disk one that is there opens all the same, for reading.
int db_open(struct db **out, const char *dir, enum db_use use, struct err *e);
void db_close(struct db *s); // null is fine
// Whether the disk has room again, for far more than a transaction.
bool db_has_room(const struct db *s);

// All rows that the decider wants back (all but logs), kind after kind, jobs by seq, requests by time.
int db_load(struct db *s, int (*row)(void *ctx, const struct row *r, struct err *e), void *ctx,
            struct err *e);
// One transaction, all or nothing. With the row of a job that is erased go its checkpoints and
// events. A job's state that is not the one that the row replaces is ERR_INTERNAL
// (memory and disk disagree: end the process). ERR_LIMIT: the disk is full. Any failure: nothing was
// written, and memory is ahead of the rows: they are to be loaded again, or the process ends.
int db_commit(struct db *s, const struct row *rows, int n, struct err *e);

// Which host ids each certificate has used; binding.h says what follows. Each in a transaction of
// its own.
struct db_owner {                       // of a host id; empty: nobody
    char name[RPC_NAME_MAX], print[65]; // of the certificate, and of its key
};
int db_owner(struct db *s, const char *host, struct db_owner *out, struct err *e);
int db_owned(struct db *s, const char *print, struct arena *a, const char ***out, int *n,
             struct err *e);
int db_bind(struct db *s, const char *host, const struct db_owner *owner, struct err *e);
int db_unbind(struct db *s, const char *host, struct err *e);

// Readers for clients. The events from `seq` on.
int db_events(struct db *s, const char *job, uint64_t seq, struct arena *a, Weft__V1__Event ***out,
              size_t *n, struct err *e);
// The cluster's id beside the database, and coord_marks (`cluster`, synced): what survives a lost
// database, and shows an older copy of it. "" and 0: none.
int db_cluster(struct db *s, char out[ID_LEN], int64_t *marks, struct err *e);
int db_set_cluster(struct db *s, const char *id, int64_t marks, struct err *e);
