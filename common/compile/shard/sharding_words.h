// SPDX-License-Identifier: Apache-2.0
// Inside sharding only (sharding.c, refine.c): the job's words on the way to specs, and the fixes
// that are told in the same words.
#pragma once
#include "common/compile/shard/resolve.h"

struct making {
    struct sharding *s;
    const struct job *job;
    const struct mesh *mesh;
    struct findings *found;
    const char *key; // of the list of parameter specs at hand: "sharding.params"
    int n;           // its entries
    const struct job_param_spec *list;
    const struct graph *graph; // once specs are held against its tensors
};

// Where a spec stands, for what is wrong with it: a parameter's entry (at ≥ 0) or a point.
struct place {
    int param;
    const char *name; // of the pattern or the point
    const struct job_spec *spec;
};

// "layers/*/attn/out/weight" of one layer's: its likes in all layers.
const char *words_glob(struct arena *a, const char *name);
const char *words_line(struct making *k, int line); // " (line 7)"; "" for 0
struct job_names words_without(struct arena *a, const struct job_names *s, int drop);
// The list at hand with entry `at` replaced, or with one for `match` put in front of it.
const char *words_fix_entry(struct making *k, int at, const char *match, bool insert,
                            const struct job_spec *spec);
// A spec as an entry for one tensor, in the axes' own names.
struct job_spec words_of_spec(struct arena *a, const struct mesh *m, int dims,
                              const struct spec *spec);
const char *words_sizes(struct making *k, int64_t size, int64_t parts); // "12 or 16"

void words_unknown_axis(struct making *k, const char *tensor, const char *name, int line,
                        const char *fix);
// Whether the axis holds the pipeline's stages, which cut no tensor: that is told then.
bool words_stage_axis(struct making *k, const char *tensor, int axis, int line, const char *fix);
// A name that stands more than once in a list, null: none does; and the list with each name once.
const char *words_twice(struct making *k, const struct job_names *s, struct job_names *once);
void words_told_twice(struct making *k, const char *tensor, const char *name, int line,
                      const char *fix);
struct spec words_spec(struct making *k, const struct place *p);
// The axes that a name stands for, itself or as a rule; false: nobody knows it.
bool words_axes(const struct making *k, const char *name, struct dim_cut *out);
bool words_match(const struct job_param_spec *p, const struct value *v);
// Entries of the list at hand that no parameter matches.
void words_check_matches(struct making *k, const struct graph *g);
