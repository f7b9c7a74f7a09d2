// SPDX-License-Identifier: Apache-2.0
// The hash of a plan: of its programs, by which ranks find that theirs are the same. It covers what
// dump_program() prints: numbers as they are, since printing those of a million instructions took
// longer than all else that the compiler does; attributes as the text of dump.h, made once for all
// nodes that have the same.
//
// It is for comparing processes of one version: no file keeps it, and another may have another form.
#pragma once
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/map.h"
#include "common/compile/program/program.h"

struct plan_hash {
    struct xxh3 *sum, *one; // of all programs; of an attribute of one
    struct buf bytes, text; // bytes: of programs, not yet in the sum
    struct map attrs;       // what the bytes of attributes hash to → the hash of their text
    struct arena arena;     // theirs
};

void plan_hash_init(struct plan_hash *hash);
void plan_hash_add(struct plan_hash *hash, const struct program *p);
void plan_hash_end(struct plan_hash *hash, char out[33]); // frees what it holds
