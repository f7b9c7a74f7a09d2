// SPDX-License-Identifier: Apache-2.0
// Inside worker/agent/ only. What an agent remembers of each attempt for as long as it lives
// on this host: its ranks and their processes, what they asked and put, what they were answered,
// and how they ended.
//
// A question and its answer have the same *topic*: both are about a key, a barrier or the save of a
// step. So an answer finds the questions that it answers. All memory is the heap's, since an
// attempt lives longer than any event.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/message.h"
#include "common/attempt/page.h"
#include "common/base/arena.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "proto/weft.pb-c.h"

// The sent_ns of what was not sent to the coordinator yet, or must be sent again.
#define UNSENT INT64_MIN

enum topic_kind { TOPIC_NONE, TOPIC_PUT, TOPIC_GET, TOPIC_BARRIER, TOPIC_READY, TOPIC_SAVE };
struct topic {
    enum topic_kind kind;
    int64_t number;   // a barrier's sequence number, a save's step
    const char *name; // a key, a barrier's name; borrowed from the frame
};
// TOPIC_NONE when the frame is neither a question nor an answer.
struct topic topic_of_frame(const Weft__Rank__Frame *f);

struct attempt_frame { // a question, a put or an answer
    struct list link;
    int rank;        // −1, of an answer: it is for every rank of the attempt
    int64_t sent_ns; // when it last went up, or UNSENT; not of an answer
    bool answered;   // of a put: the coordinator has taken or refused it
    Weft__Rank__Frame *frame;
};

struct attempt_rank {
    int rank, device;
    int slot;                  // of its process; −1: none
    int pid;                   // 0: not known yet, or none
    bool seen, view_changed;   // `view` holds something; something that was not sent
    struct page_view view;     // its progress page
    Weft__Rank__Exit *exit;    // its frame of that kind, or null
    Weft__Rank__Frame *report; // the newest StepReport that did not go up yet, or null
    bool asked_to_stop, killed;
    Weft__V1__RankEnd *end; // null: it has not ended
    bool end_settled;       // its consequences were drawn
    int64_t end_sent_ns;
};

// The part of an attempt that runs on this host.
struct local_attempt {
    struct list link;
    char *job;
    uint64_t number;
    int nranks;
    struct attempt_rank *ranks;
    struct list questions, answers, puts; // attempt_frame
    bool dirty;                           // something happened that was not settled
    bool reaped;                          // no process of it lives here, and none ever will
    bool forgotten;                       // the coordinator knows that: it may be freed
    int64_t reaped_sent_ns;
    int64_t kill_ns; // its ranks are killed then; 0: no
};

struct process_slot { // names a process while it lives; both null when free
    struct local_attempt *attempt;
    struct attempt_rank *rank;
};

struct attempts {
    struct list all;
    struct map reaped; // job → uint64_t: the greatest attempt that was said to be reaped
    struct process_slot *slots;
    int nslots, living;
};

void attempts_init(struct attempts *t);
void attempts_clear(struct attempts *t); // frees everything, the reaped attempts too
struct local_attempt *attempts_find(const struct attempts *t, const char *job, uint64_t attempt);
struct local_attempt *attempts_add(struct attempts *t, const char *job, uint64_t attempt,
                                   int nranks);
void attempts_remove(struct local_attempt *at); // frees it; no process of it lives
struct attempt_rank *attempts_find_rank(const struct local_attempt *at, int rank);

// The greatest attempt of a job that was reaped here, so that no process of it will ever live again;
// 0: none.
uint64_t attempts_newest_reaped(const struct attempts *t, const char *job);
void attempts_set_reaped(struct attempts *t, const char *job, uint64_t attempt);
void attempts_forget_reaped(struct attempts *t); // of all jobs
// The greatest attempt of a job that is remembered; 0: none.
uint64_t attempts_newest(const struct attempts *t, const char *job);

// A rank's process takes the lowest free slot, and gives it back when it was reaped.
void slot_take(struct attempts *t, struct local_attempt *at, struct attempt_rank *r);
void slot_give_back(struct attempts *t, int slot);
struct process_slot slot_get(const struct attempts *t, int slot);

// The first of a list with this topic and kind that is `rank`'s or everybody's; or null.
struct attempt_frame *attempt_frame_find(const struct list *l, int rank, int kind,
                                         const struct topic *topic);
// Copies the frame. It replaces one of the same rank, kind and topic.
struct attempt_frame *attempt_frame_add(struct list *l, int rank, const Weft__Rank__Frame *f);
void attempt_frame_free(struct attempt_frame *f);
bool topic_same(const struct topic *a, const struct topic *b);
