// SPDX-License-Identifier: Apache-2.0
// A program looked at by itself, without a job file: what it makes of its sizes, for `weft model`.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/unruled.h"
#include "common/job/job.h"

// A name that the text gives a value, with the value's dimensions: once for each line that gives it
// one.
struct model_named {
    int line;
    const char *name, *dims; // "[batch, seq, embed]"
};
// What the default rule of a dimension cuts.
struct model_cut {
    const char *dim, *axes; // "[dp, fsdp]"
    double params;          // the share of all parameters that have this dimension
    int tensors;            // how many these are
};
struct model_checked {
    struct job job; // a job of one sample on one device, with this program
    const char *title;
    int64_t params; // padding included
    double flops;   // of a step of one sample, forward, backward and update
    int nnamed, named_cap, ncuts, nunlike, nunread;
    struct model_named *named;
    struct model_cut *cuts;
    // Sizes that no rule cuts though they are multiples of one that has one.
    const struct unruled *unlike;
    const char **unread; // parameters that nothing reads, or unread() alone
    // Sizes that nothing reads, and parameters that one turn of a repeat reads more than once.
    const struct model_size **unused;
    struct model_reread {
        int line, first_line;
        const char *param;
    } * reread;
    int nunused, nreread, reread_cap;
    double uncut;          // the share of the parameters that no default rule cuts
    const char *most;      // the largest parameter among them, or null
    const struct graph *g; // the forward, the gradient and the update
};

// `program`: a name of weft's or a path; `sizes`: "layers=2" each. Everything lies in `a`. 0, or
// ERR_INVALID with what is wrong in `why`, a line each.
int model_check(const char *program, const char *const *sizes, int nsizes, struct arena *a,
                struct model_checked *out, struct buf *why);
// As model_check(), but without what only a compile knows, the FLOPs and the cuts: `g` is the
// forward part alone.
int model_look(const char *program, const char *const *sizes, int nsizes, struct arena *a,
               struct model_checked *out, struct buf *why);
