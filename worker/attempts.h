// SPDX-License-Identifier: Apache-2.0
// What an agent keeps of each attempt, for as long as its epoch lives here: its ranks and their
// processes, what they asked and put, what they were answered, how they ended.
//
// A question and its answer share a *topic*, a text such as "get/KEY" or "save/200" (attempts.c
// has the table), so that an answer finds what it answers whatever the kinds are. Memory is the
// heap's: an attempt lives longer than any event.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/page.h"
#include "common/base/arena.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "proto/weft.pb-c.h"

enum { TOPIC_MAX = 400 };

struct kept_frame {
    struct list link;
    int rank;        // −1, of an answer: all of the attempt here
    int64_t said_ns; // of a question: when it last went up
    bool answered;   // of a put: the coordinator has taken or refused it
    char topic[TOPIC_MAX];
    Weft__Rank__Frame *frame;
};

struct kept_rank {
    int rank, device;
    int slot; // of its process; −1: none
    int pid;  // 0: not known yet, or none
    bool seen, changed;
    struct page_view view;      // of its page, if `seen`; not told yet, if `changed`
    char *why;                  // of its Exit frame, or null
    Weft__V1__RankEnd *end;     // once it has ended
    int64_t said_ns;            // when `end` last went up
    Weft__Rank__Frame *report;  // newest StepReport that could not go up, or null
    bool asked_to_stop, killed; // its process
};

struct kept {
    struct list link;
    char *job;
    uint64_t epoch;
    int n;
    struct kept_rank *ranks;
    struct list asked, answered, puts; // kept_frame
    bool reaped;                       // no process of it lives here, none will
    int64_t said_ns;                   // when Reaped last went up
    int64_t kill_ns;                   // its ranks are killed then; 0: no
};

struct place { // of a slot
    struct kept *k;
    struct kept_rank *r;
};

struct attempts {
    struct list all;
    struct map reaped; // job → uint64_t: the greatest epoch confirmed reaped
    struct place *slots;
    int nslots, living;
};

void attempts_init(struct attempts *t);
void attempts_clear(struct attempts *t); // forgets everything, the reaped epochs too
struct kept *attempts_find(const struct attempts *t, const char *job, uint64_t epoch);
struct kept *attempts_add(struct attempts *t, const char *job, uint64_t epoch, int nranks);
void attempts_drop(struct attempts *t, struct kept *k); // no process of it lives
struct kept_rank *kept_find(const struct kept *k, int rank);
bool kept_is_alive(const struct kept *k);

// The greatest epoch of a job of which nothing lives here and nothing ever will; 0: none.
uint64_t attempts_reaped(const struct attempts *t, const char *job);
void attempts_set_reaped(struct attempts *t, const char *job, uint64_t epoch);
uint64_t attempts_newest(const struct attempts *t, const char *job); // kept ones; 0: none

// Slots name processes: the lowest free one is taken, and given back when the process was reaped.
int slot_take(struct attempts *t, struct kept *k, struct kept_rank *r);
void slot_free(struct attempts *t, int slot);
struct place slot_place(const struct attempts *t, int slot); // {null} when free

// The topic of a question or of an answer; false when the frame is neither.
bool frame_topic(const Weft__Rank__Frame *f, char out[TOPIC_MAX]);
Weft__Rank__Frame *frame_copy(const Weft__Rank__Frame *f);                 // the heap's
Weft__Rank__Frame *frame_dup(struct arena *a, const Weft__Rank__Frame *f); // the arena's
ProtobufCMessage *message_dup(struct arena *a, const ProtobufCMessage *m); // the arena's
ProtobufCMessage *message_copy(const ProtobufCMessage *m);                 // the heap's

struct kept_frame *keep_find(const struct list *l, int rank, int kind, const char *topic);
// Takes the place of one with the same rank, kind and topic.
struct kept_frame *keep_add(struct list *l, int rank, const char *topic,
                            const Weft__Rank__Frame *f);
void keep_remove(struct kept_frame *f);
