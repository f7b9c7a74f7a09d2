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
#include "coordinator/coord_state.h"

struct job_record;

struct conn { // a worker's stream
    uint64_t number;
    char id[ID_LEN]; // the host of its Hello
    char incarnation[ID_LEN];
    char nonce[ID_LEN]; // open challenge; empty: none
    struct host *host;  // registered
};

struct device {
    char kind[16], model[128];
    int64_t memory;
    struct job_record *holder; // whose attempt has it, or null
    int rank;
    bool busy; // the latest report shows a rank on it
};

struct host {
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

struct host *host_find(const struct coord *c, const char *id);
// An id, a name, or a unique start of an id.
struct host *host_of(const struct coord *c, const char *target, struct err *e);
struct host *host_load(struct coord *c, const Weft__Rows__Host *row);
void host_load_fenced(struct coord *c, const Weft__Rows__Fenced *row);
void hosts_free(struct coord *c);
const char *host_name(const struct host *host);  // never empty
const char *host_state(const struct host *host); // as in WorkerStatus
bool host_takes_work(const struct host *host);
bool host_is(const struct host *host, const char *incarnation);   // lives as this one, not fenced
bool host_silent(const struct coord *c, const struct host *host); // for more than a heartbeat
void host_hold(struct host *host, int device, struct job_record *j, int rank); // j null: gives back
void host_idle(struct coord *c, struct host *host, int device); // its process is gone

void host_up(struct coord *c, uint64_t conn, const Weft__V1__Up *up);
void host_gone(struct coord *c, uint64_t conn);
void hosts_tick(struct coord *c);    // leases
void hosts_started(struct coord *c); // all rows are in
void hosts_afresh(struct coord *c);  // all leases begin now
void hosts_sweep(struct coord *c);   // forgets who has been gone for long
void hosts_flush(struct coord *c);
