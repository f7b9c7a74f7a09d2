// SPDX-License-Identifier: Apache-2.0
// Inside of the store: name prefixes and the small durable acts that store.c and store_write.c
// share.
#pragma once
#include "common/ckpt/store.h"

#define STORE_TMP   ".tmp-"
#define STORE_DEAD  ".dead-"
#define STORE_TRASH ".trash-"
#define STORE_LOOSE ".new-" // a file on its way to its name

enum { STORE_NAME_MAX = 160, STORE_PATH_MAX = sizeof((struct store *)0)->path };

// prefix + name + "." + random hex: a name that nobody else has.
void store_fresh_name(const char *prefix, const char *name, char out[STORE_NAME_MAX]);
// Whether `name` begins with the prefix; what follows it goes to *rest (may be null).
bool store_begins(const char *name, const char *prefix, const char **rest);
int store_fsync(int fd, const char *what, struct err *e);
// Calls `each` with every name in the directory until one returns non-zero.
int store_list(int dirfd, int (*each)(void *arg, const char *name, struct err *e), void *arg,
               struct err *e);
int store_write_file(int dirfd, const char *name, const void *data, size_t len,
                     struct err *e); // new, synced
// ERR_EXISTS when `to` is there; it is never replaced.
int store_rename_new(int dirfd, const char *from, const char *to, struct err *e);
