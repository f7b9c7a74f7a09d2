// SPDX-License-Identifier: Apache-2.0
// Settings that help: texts for -s that change the sharding section in the job's own words. A rule,
// a point's spec, a list of names, or a list of parameter specs with an entry corrected, or with
// one for the tensor at hand put in front. Inside explain/ only.
#pragma once
#include "common/compile/shard/sharding.h"

// What a fix is made from.
struct fixer {
    struct arena *arena;
    const struct job *job;
    const struct sharding *sharding;
    const struct mesh *mesh;
};

// Of sharding.params, grads and optimizer: the key, and the entries of the job.
struct entries {
    const char *key; // "sharding.params"
    int n;
    const struct job_param_spec *list;
};
struct entries fix_entries(const struct job *job, enum fact_list list);

struct job_names names_without(struct arena *a, const struct job_names *s, int drop);
struct job_names names_once(struct arena *a, const struct job_names *s);
// The names of `s` none of whose axes is among `axes`.
struct job_names names_without_axes(const struct fixer *f, const struct job_names *s,
                                    axis_set axes);
// A spec as an entry for one tensor, in the axes' own names.
struct job_spec spec_in_names(const struct fixer *f, int dims, const struct spec *spec);

const char *fix_rule(const struct fixer *f, const char *dim, const struct job_names *names);
const char *fix_point(const struct fixer *f, const char *point, const struct job_spec *spec);
const char *fix_gather(const struct fixer *f, const struct job_names *names);
const char *fix_refine(const struct fixer *f, enum fact_list list, const struct job_refine *r);
// The list with entry `at` replaced by one for `match`, or with that one put in front of it.
const char *fix_entry(const struct fixer *f, enum fact_list list, int at, const char *match,
                      bool insert, const struct job_spec *spec);
const char *fix_without_entry(const struct fixer *f, enum fact_list list, int at);

// "layers/*/attn/out/weight" of one layer's: the same parameter of all layers.
const char *layers_glob(struct arena *a, const char *name);
