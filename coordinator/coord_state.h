// SPDX-License-Identifier: Apache-2.0
// What the decider's modules share: the state itself, how rows and actions leave, randomness.
// Inside coordinator/ only; the contract with the owner is coord.h.
#pragma once
#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "coordinator/coord.h"
#include "coordinator/placement.h"

enum { // gRPC's numbers
    CODE_INVALID = 3,
    CODE_NOT_FOUND = 5,
    CODE_DENIED = 7,
    CODE_EXHAUSTED = 8,
    CODE_PRECONDITION = 9,
    CODE_ABORTED = 10,
};
enum { ID_LEN = 33, TEXT_MAX = 600 };

struct host;
struct job_record;

enum { QUEUE_KINDS = 2, FAILED_MAX = 8 }; // kinds of devices: see queue.c
// Wants for which a set of hosts was not enough. While it gains no device asking again is no use:
// thousands of like jobs cost one search.
struct queue_failed {
    int n, next;
    struct place_want v[FAILED_MAX];
};
// What the last round says about jobs that come later, a kind of devices.
struct queue_tail {
    const struct job_record *at,
        *first;                // whoever is behind `at` waits behind `first`; null: not so
    struct queue_failed never; // fit none of the known hosts, even when they are empty
};

struct coord {
    struct coord_config config;
    char cluster[ID_LEN];
    uint64_t draws;    // of the seed
    struct map by_id;  // job id → struct job_record
    struct list jobs;  // by seq
    struct list queue; // those QUEUED: by priority, then seq
    int nqueued;       // in it
    int64_t wake_ns;   // when the first of them that the last round left to its backoff may go
                       // on; 0: none waits so
    struct queue_tail tails[QUEUE_KINDS];
    struct list dirty;      // those whose row is to be written
    struct list live;       // attempts
    struct map hosts_by_id; // host id → struct host
    struct list hosts;      // the same, by the time they were first seen
    struct map fenced;      // "host/incarnation" → struct fenced
    struct list fences;     // the same
    struct map conns;       // of the number in hex → struct conn
    struct map requests;    // id → struct request
    struct list answered;   // the same, oldest first
    struct list loaded;     // checkpoint rows that wait for coord_started
    uint64_t next_seq, next_audit;
    int64_t lost_ms; // when the database was found lost: hosts are asked what lies in their folders
    bool meta_dirty, hosts_dirty, had_meta;
    bool started;
    bool place; // something changed that may let a job be placed
    int64_t now_ns, wall_ms, stepped_ns;
    int64_t grace_ns;                             // until then hosts are still coming back
    int64_t swept_ns;                             // when history was last trimmed
    int64_t failures, committed, restarts, steps; // counters of /metrics
    struct coord_out *out;                        // of the step at hand
};

// ---- what leaves (out.c): everything is copied into out's arena ----
ProtobufCMessage *msg_dup(struct arena *a, const ProtobufCMessage *m);
void *msg_heap(const ProtobufCMessage *m); // free with the type's free_unpacked(m, NULL)
void out_row(struct coord *c, Weft__Rows__Write__RowCase which, const ProtobufCMessage *row,
             bool erase);
#define OUT_ROW(c, WHICH, msg)   out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(msg)->base, false)
#define OUT_ERASE(c, WHICH, msg) out_row((c), WEFT__ROWS__WRITE__ROW_##WHICH, &(msg)->base, true)
void out_down(struct coord *c, uint64_t conn, const Weft__V1__Down *down); // conn 0: nobody
void out_drop(struct coord *c, uint64_t conn, int code, const char *text);
void out_reply(struct coord *c, uint64_t call, const ProtobufCMessage *reply);
void out_refuse(struct coord *c, uint64_t call, int code, const char *text);
void out_publish(struct coord *c, const char *job, const Weft__V1__WatchUpdate *update);

// An empty message: ROW_NEW(Audit, audit, row). (The generated initialisers cast const away.)
#define ROW_NEW(Type, type, name) \
    Weft__Rows__##Type name;      \
    weft__rows__##type##__init(&name)
#define V1_NEW(Type, type, name) \
    Weft__V1__##Type name;       \
    weft__v1__##type##__init(&name)
// A Down with one body: DOWN(d, START, start, &start).
#define DOWN(name, CASE, member, ptr)             \
    Weft__V1__Down name = WEFT__V1__DOWN__INIT;   \
    name.body_case = WEFT__V1__DOWN__BODY_##CASE; \
    name.member = (ptr)

void coord_random(struct coord *c, unsigned char out[32]); // the next 32 bytes of the seed
void coord_new_id(struct coord *c, char out[ID_LEN]);

// For people, and for every client's decoder: what is no UTF-8 and what steers a terminal becomes
// '?'; lines and tabs stay.
void text_plain(char *s);
// A protobuf text field of the heap.
void text_set(char **field, const char *s);
static inline int64_t ms_ns(int64_t ms)
{
    return ms * CLOCK_MS;
}
