// SPDX-License-Identifier: Apache-2.0
// Names in a job's checkpoint directory, for the files of the store. Inside common/ckpt/ only.
#pragma once
#include "common/ckpt/store.h"

#define STORE_TMP   ".tmp-"   // a checkpoint being written
#define STORE_DEAD  ".dead-"  // one that was fenced or aborted
#define STORE_TRASH ".trash-" // one that was deleted
#define STORE_ASIDE "aside-"  // one that a person went back behind
#define STORE_LOOSE ".new-"   // a file that has not got its name yet

enum { STORE_NAME_MAX = 160, STORE_PATH_MAX = sizeof((struct store *)0)->path };

// A file that appears whole or not at all: who looks meanwhile sees none, or the one before, which only
// `replaces` replaces (else ERR_EXISTS). Its name is durable once the directory is synced.
int store_write_whole(const struct store *s, const char *name, bool replaces, const char *text,
                      size_t len, struct err *e);
// prefix + name + "." + random hex: a name that nobody else has.
void store_fresh_name(const char *prefix, const char *name, char out[STORE_NAME_MAX]);
// Whether `name` begins with the prefix; what follows it goes to *rest (may be null).
bool store_begins(const char *name, const char *prefix, const char **rest);
