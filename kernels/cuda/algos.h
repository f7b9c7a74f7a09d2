// SPDX-License-Identifier: Apache-2.0
// Choices of algorithms by key: ranks agree on them, the numerics record keeps them, and a folder
// keeps those of earlier timings. Only product.c and attention_library.c know what a key or a
// choice means. Inside kernels/cuda/ only.
//
// As text: a header that names their owner, since no other device or library can use them; then a
// line for each key, sorted:
//
//   algorithms NVIDIA H200, sm_90, 132 processors, cublaslt 13.1.0
//   KEY = CHOICE
//
// A device that need not be deterministic is another owner: ", not deterministic" follows; then
// come switches that have not their usual value (switches.h).
//
// In FOLDER/algorithms-HASH-OF-OWNER each line ends in its time, "KEY = CHOICE 41.2" (µs), and the
// last line is "end DIGEST", the FNV-1a of all before it. The file is read if and only if the
// digest is right and the header names the reader.
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
// Adds the lines of a text of algos_print(); they replace lines with the same keys.
// ERR_UNSUPPORTED: the text is another owner's; ERR_INVALID: it is no such text; in both cases
// nothing is added.
int algos_read(struct algos *a, const char *text, struct err *e);

// Adds what the folder's file holds. A damaged file or another owner's is ignored with a warning.
void algos_load(struct algos *a, const char *folder);
// Adds `a` to the folder's file, and makes the folder if there is none. Processes that do so at the
// same time wait for each other.
int algos_save(const struct algos *a, const char *folder, struct err *e);
