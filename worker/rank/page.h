// SPDX-License-Identifier: Apache-2.0
// Progress pages: a small mapped file a rank in which it says where it is, read from outside, so
// that a stuck rank cannot hide. The layout is struct progress_page of collective.h.
//
// The rank's main thread writes step, phase and state, the collectives their own fields. Readers
// take a copy (page_read); its fields may be of slightly different moments.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/collective/collective.h"
#include "worker/rank/rank.h"

int page_create(const char *path, int rank, struct progress_page **out, struct err *e); // O_EXCL
int page_open(const char *path, const struct progress_page **out, struct err *e);       // read-only
void page_close(const struct progress_page *p); // unmaps; null is fine

// Owner's side; each also moves the heartbeat.
void page_state(struct progress_page *p, enum rank_state state);
void page_step(struct progress_page *p, int64_t step);
void page_phase(struct progress_page *p, int phase, int microbatch);
void page_beat(struct progress_page *p); // progress of another kind: a file loaded, an epoch read

// A copy at rest.
struct page_view {
    int rank, pid;
    int64_t step;
    int phase, microbatch, state;
    uint64_t ops, coll_entered, coll_left, heartbeat_ns;
    char coll_text[64];
    int awaits;              // 1 + the rank that it waits for in a collective; 0: nobody
    uint64_t awaits_entered; // the last one that it saw that rank enter
};
void page_read(const struct progress_page *p, struct page_view *out);
// True when nothing differs that is progress: whom a rank waits for is none.
int page_view_equal(const struct page_view *a, const struct page_view *b);
// "step 12, backward, in collective 31 (fc1/weight)" into out.
void page_view_text(const struct page_view *v, char *out, size_t size);
