// SPDX-License-Identifier: Apache-2.0
// How devices share the products of a training step, now and under other rules.
// Inside common/explain/ only.
//
// Other rules are tried on the graph that is there: it is partitioned once more, and nothing is
// lowered. So a fix that rules_search() gives has been seen to help.
#pragma once
#include "common/compile/compile.h"

struct work {
    double utilisation; // FLOPs of the unpartitioned graph over those of all devices together
    axis_set repeated;  // axes over which enough of the products is repeated to report it
    axis_set dense;     // over which most of the products that are not experts' are
};
// Of the train program's partitioned graph.
struct work work_count(const struct compiled *c, const struct graph *cut);
// Whether that is worth a finding.
bool work_is_repeated(const struct work *w);

// Rules that get these axes behind their own.
enum { RULES_TRIED = 4 };
struct rules_change {
    int n;
    struct {
        const char *dim;
        axis_set axes;
    } rule[RULES_TRIED];
};
void rules_add(struct rules_change *to, const char *dim, axis_set axes);
// Texts for -s, joined by " and ".
const char *rules_text(const struct compiled *c, const struct job *job,
                       const struct rules_change *r, struct arena *a);

// What the changed rules make of the step. False: there would be more to refuse than now, or another
// warning.
bool rules_try(const struct compiled *c, const struct job *job, const struct rules_change *r,
               struct work *out);
// Searches for rules that share the work out so well that nothing of it is reported any more: true.
// Else false, and `best` is the best change that was found, empty if none helps. The search adds
// one rule after another, the one that helps most, and cuts embed and seq, which costs collectives
// in each layer, only where nothing else does.
bool rules_search(const struct compiled *c, const struct job *job, struct rules_change *best,
                  struct work *then);
