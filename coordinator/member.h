// SPDX-License-Identifier: Apache-2.0
// Hosts: who may speak, who lives, which of its devices are free.
//
//   Hello ─► Challenge(nonce) ─► Register(nonce) ─► Registered, or FencedOut
//
// A registration counts once the worker has echoed the newest nonce of its host. A host that is not
// heard for a lease is fenced: its incarnation is never accepted again, durably, and its attempts
// there are over. A second incarnation that registers while the first lives fences the first.
// A device is free when no attempt holds it and the latest report of the host shows no rank on it.
#pragma once
#include "coordinator/state.h"

struct job_rec;

struct conn { // a worker's stream
    uint64_t number;
    char host[ID_LEN]; // of its Hello
    char incarnation[ID_LEN];
    char nonce[ID_LEN];    // open challenge; empty: none
    struct member *member; // registered
};

struct device {
    char kind[16], model[128];
    int64_t memory;
    struct job_rec *holder; // whose attempt has it, or null
    int rank;
    bool busy; // the latest report shows a rank on it
};

struct member {
    struct list link;
    Weft__Rows__Host *row;
    bool dirty;
    bool fenced;       // its newest incarnation is; cleared by a registration
    bool leaving;      // its worker was asked to stop
    uint64_t conn;     // 0: away
    char open[ID_LEN]; // nonce of the newest challenge
    int64_t heard_ns;
    Weft__V1__Register *about; // its latest registration, or null; attempts are left out
    int ndevices;
    struct device *devices;
    int in_round; // its number in the round of placement at hand; −1: it takes no part
};

struct member *member_find(const struct coord *c, const char *id);
// An id, a name, or a unique start of an id.
struct member *member_of(const struct coord *c, const char *target, struct err *e);
struct member *member_load(struct coord *c, const Weft__Rows__Host *row);
void member_load_fenced(struct coord *c, const Weft__Rows__Fenced *row);
void members_free(struct coord *c);
const char *member_name(const struct member *m);  // never empty
const char *member_state(const struct member *m); // as in WorkerStatus
bool member_takes_work(const struct member *m);
bool member_is(const struct member *m, const char *incarnation);   // lives as this one, not fenced
bool member_silent(const struct coord *c, const struct member *m); // for more than a heartbeat
void member_hold(struct member *m, int device, struct job_rec *j, int rank); // j null: gives back
void member_idle(struct coord *c, struct member *m, int device);             // its process is gone

void member_up(struct coord *c, uint64_t conn, const Weft__V1__Up *up);
void member_gone(struct coord *c, uint64_t conn);
void members_tick(struct coord *c);    // leases
void members_started(struct coord *c); // all rows are in
void members_afresh(struct coord *c);  // all leases begin now
void members_sweep(struct coord *c);   // forgets who has been gone for long
void members_flush(struct coord *c);
