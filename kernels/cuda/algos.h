// SPDX-License-Identifier: Apache-2.0
// Choices of algorithms by key: what ranks agree on, what the numerics record keeps, and what a
// folder remembers of earlier timings. What a key or a choice means is product.c's.
// Inside kernels/cuda/ only.
//
// As text a header names whose choices they are (no other device or library can use them), then
// comes a line a key, sorted:
//
//   algorithms NVIDIA H200, sm_90, 132 processors, cublaslt 13.1.0
//   KEY = CHOICE
//
// A device that need not be deterministic is another owner: ", not deterministic" follows.
//
// In FOLDER/algorithms-HASH-OF-OWNER a line has its time behind it, "KEY = CHOICE 41.2" (µs), and
// the file ends in "end DIGEST", the FNV-1a of all before. Such a file is read if and only if the
// digest is right and the header is the reader's.
//
// Keys hold no '=' and no line break, choices no space.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct algo {
    char *key, *choice;
    double us; // 0: not timed
};
struct algos { // algos_init first
    char owner[448];
    struct algo *line; // sorted by key
    int n, cap;
};

void algos_init(struct algos *a, const char *owner);
void algos_clear(struct algos *a);

const char *algos_get(const struct algos *a, const char *key); // the choice; null: none
// Sets or replaces the key's choice. Keeps copies.
void algos_put(struct algos *a, const char *key, const char *choice, double us);

void algos_print(const struct algos *a, bool times, struct buf *out);
// Adds what a text of algos_print() says, in place of what was there. ERR_UNSUPPORTED: it is
// another owner's; ERR_INVALID: it is no such text. Nothing is added then.
int algos_read(struct algos *a, const char *text, struct err *e);

// FNV-1a in 64 bits: against damage, not against malice; xxhash is not on every GPU machine.
uint64_t algos_digest(const char *text, size_t n);

// What the folder remembers. A file that is damaged or another owner's is as none, with a warning.
void algos_load(struct algos *a, const char *folder);
// Adds `a` to what the folder remembers; makes the folder where it is not there. Processes that do
// so at the same time wait for each other.
int algos_save(const struct algos *a, const char *folder, struct err *e);
