// SPDX-License-Identifier: Apache-2.0
// The watch: from the progress pages of all ranks over time, whether the attempt hangs and who is
// the culprit. Pure: views and times come in. Inside common/attempt/ only.
//
// A running rank must change its page within hang_after of the longest step seen; in other states
// it has that state's limit. A saving rank whose process has been stopped for as long as a running
// one may stand still gets no more time: the limit of saving is for a process that writes.
//
// The culprit is the rank for which all others wait in the end. Each page names one rank that its
// owner waits for in a collective. Following these names from rank to rank leads to a rank that
// waits for nobody, or around in a circle. A circle is a deadlock, or one of its pages is old,
// because its owner was stopped while it waited. Then the culprit is a rank whose process is
// stopped, else one that has seen less of its peer than that peer has done. Where this
// does not decide, the ranks in the earliest step are compared, since stages of a pipeline count
// their collectives differently: the culprit has entered the lowest collective; among equals it is
// the one that is stopped, has left fewer collectives, has started fewer instructions, or changed
// its page longest ago.
//
// As long as that rank runs and its page changes, nobody hangs: those who wait for it stand still
// for as long as its work takes.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/attempt/page.h"

struct watch_entry {
    struct page_view view;
    bool seen, gone;    // gone: it ended, nothing is expected of it
    int64_t changed_ns; // when the view last changed
    int64_t stepped_ns; // when its step last changed while running; 0: not yet
    int64_t stopped_ns; // saving: since when its process is stopped; 0: it is not
};
struct watch {
    int n;
    struct watch_entry *entries;
    int64_t hang_after_ns;
    int64_t limit_ns[RANK_STATE_COUNT]; // 0: none; RUNNING's is computed
    int64_t longest_step_ns;
};

void watch_init(struct watch *w, int ranks, int64_t hang_after_ns);
void watch_clear(struct watch *w);
void watch_see(struct watch *w, int rank, const struct page_view *v, int64_t now_ns);
void watch_gone(struct watch *w, int rank);

struct watch_verdict {
    int rank;
    int64_t still_ns; // for how long
};
// True when the attempt hangs.
bool watch_hung(struct watch *w, int64_t now_ns, struct watch_verdict *out);

// Call this when this process stood still, or could not hear some ranks, for the last `ns`: that time
// does not count.
void watch_postpone(struct watch *w, int64_t ns, int64_t now_ns);
