// SPDX-License-Identifier: Apache-2.0
// Progress pages: a small mapped file a rank in which it says where it is, read from outside, so
// that a stuck rank cannot hide.
//
// The rank's main thread writes the state, and step and phase too where it computes itself; a
// device that works through a queue reports its own (worker/rank/exec/marks.h); the collectives write
// their fields. Readers take a copy (page_read); its fields may be of slightly different moments.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/life.h"
#include "common/base/err.h"

// What a rank publishes so that a stuck one cannot hide: written by its owner with relaxed stores,
// read by anyone who mapped it (another process). All counters only grow within an attempt.
struct progress_page {
    uint32_t magic, version; // PROGRESS_MAGIC, 1
    int32_t rank, pid;
    _Atomic int64_t step;
    _Atomic int32_t phase, microbatch; // enum phase of compile/graph/graph.h
    _Atomic int32_t state;             // enum rank_state
    _Atomic uint64_t ops;              // instructions started; on a device: about so many
    _Atomic uint64_t collective_entered, collective_left; // number of the last collective, from 1
    _Atomic uint64_t collective_name; // the first 8 bytes of the tensor's name hash (fnv1a of it)
    char collective_text[64];         // the name as text, best effort: a hint for people
    _Atomic uint64_t heartbeat_ns;    // clock_mono_ns of the last change
    // Whom the owner waits for in a collective and the last one that it saw that rank enter, in
    // one word: (rank + 1) << 48 | number; 0: nobody. Not a change of its own: no heartbeat.
    _Atomic uint64_t awaited;
};
#define PROGRESS_MAGIC 0x77656674u

enum { PAGE_NAME_MAX = 32 };
void page_name(int rank, char out[PAGE_NAME_MAX]); // of its file: "page-0007"
bool page_is_name(const char *name);               // whether it is one that page_name makes
void page_path(const char *dir, int rank, char *out, size_t size);

int page_create(const char *path, int rank, struct progress_page **out, struct err *e); // O_EXCL
const struct progress_page *page_open(const char *path); // read-only; null: there is none (yet)
void page_close(const struct progress_page *p);          // unmaps; null is fine

// Owner's side; each also moves the heartbeat.
void page_state(struct progress_page *p, enum rank_state state);
void page_alive(struct progress_page *p); // it waits for something else than a collective
void page_step(struct progress_page *p, int64_t step);
void page_phase(struct progress_page *p, int phase, int microbatch);
void page_beat(struct progress_page *p); // progress of another kind: a file loaded

// What a page said at one moment.
struct page_view {
    int rank;
    int64_t step;
    int phase, microbatch, state;
    uint64_t ops, collective_entered, collective_left, heartbeat_ns;
    char collective_text[64];
    int awaits;              // 1 + the rank that it waits for in a collective; 0: nobody
    uint64_t awaits_entered; // the last one that it saw that rank enter
    bool stopped;            // its process is: not of the page, added by whoever started it
};
void page_read(const struct progress_page *p, struct page_view *out);
// True when there is nothing new to report.
int page_view_same(const struct page_view *a, const struct page_view *b);
// True when the two differ in nothing that is progress: whom a rank waits for is not, nor whether its
// process is stopped.
int page_view_equal(const struct page_view *a, const struct page_view *b);
// "step 12, backward of microbatch 0, in collective 31 (fc1/weight)" into out.
void page_view_text(const struct page_view *v, char *out, size_t size);
