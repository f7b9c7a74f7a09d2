// SPDX-License-Identifier: Apache-2.0
// Durable acts in a job's checkpoint folder, done for the coordinator: the storage probe and the
// fence (common/ckpt/README.md); and a look for a job's data before it is taken. Each runs on a
// thread of its own, since storage may hang; a descriptor wakes the loop when one is done. Threads
// are limited, those that look apart from the others. That a job has one act at a time is the
// agent's business. Inside worker/ only.
//
// The folder lies beneath the worker's checkpoint root. A worker without one (`weft run`: the
// caller's own rights) starts relative folders at the job's base_dir.
#pragma once
#include "common/base/err.h"
#include "proto/weft.pb-c.h"

struct storage;

struct storage_config {
    const char *root;      // --checkpoint-root; null: none
    const char *data_root; // --data-root; null or "": none
    const char *host;      // id: the name of this host's nonce
    const char *name;      // for messages
};
int storage_open(const struct storage_config *c, struct storage **out, struct err *e);
// Waits two seconds for what is being done; a thread that hangs is left to itself, with its memory,
// to the end of the process. Null is fine.
void storage_close(struct storage *s);
int storage_fd(const struct storage *s);
// cluster: for OWNER. If it cannot be begun, its answer says so.
void storage_ask(struct storage *s, const Weft__V1__Storage *ask, const char *cluster);
// The next answer (weft__v1__storage_done__free_unpacked), or null.
Weft__V1__StorageDone *storage_next(struct storage *s);
