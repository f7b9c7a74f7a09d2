// SPDX-License-Identifier: Apache-2.0
// Jobs as weft wrote them when models were built in: schema 1 of the resolved form. Inside
// common/job/ only.
#pragma once
#include "common/job/reading.h"

// A job that says `schema: 1` gets the keys that its model section has today, so that checkpoints
// and coordinators of that time go on. In these, and in resolved jobs of schema 2 that lack the
// program's text, a size that the program has gained since gets the value that was built in then.
void upgrade_tree(struct reading *r);
// Whether it was a key of the model section and is none today.
bool is_old_key(const char *key);
// Says what stands for it now: "program: gpt2, size: 350m".
void report_old_key(struct reading *r, const struct tree_node *key);
