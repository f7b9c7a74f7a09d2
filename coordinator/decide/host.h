// SPDX-License-Identifier: Apache-2.0
// Hosts: what is known of each machine with a worker, which of its devices are free, and which
// incarnations of it are fenced. Who may speak for a host is attach.h's business.
//
// An incarnation is one life of a host's worker. The fenced ones are never accepted again, durably.
// A device is free when no attempt holds it and the latest report of the host shows no rank on it.
// Inside coordinator/ only.
#pragma once
#include "common/attempt/life.h"
#include "coordinator/decide/coord_state.h"
#include "coordinator/decide/words.h"

struct host_device {
    int kind; // enum job_device_kind; JOB_DEVICE_KINDS: none that a job can ask for
    struct job_record *holder; // whose attempt has it, or null
    int rank;
    bool busy; // the latest report shows a rank on it
};

struct host {
    struct list link;

    // ---- durable ----
    char id[ID_LEN];
    char incarnation[ID_LEN]; // the newest that was accepted
    char *name;               // the heap's; no other host has it; may be empty: host_name()
    bool cordoned, draining;
    int64_t seen_ms;

    // ---- of this process's life ----
    bool dirty;    // its row is to be written
    bool vouched;  // its certificate says the same name
    bool fenced;   // its newest incarnation is; cleared by a registration
    bool leaving;  // its worker was asked to stop
    uint64_t conn; // its stream; 0: away
    uint64_t find; // the stream on which it was asked for lost jobs and has not answered; 0: none
    bool answered; // it is not asked again
    int64_t heard_ns;
    int nattempts;    // that have a rank on it
    int troubles;     // ranks that its disk, memory, device or somebody on it ended, lately
    int64_t avoid_ns; // until then placement goes elsewhere where that is possible; 0: not avoided
    int in_round;     // its number in the round of placement at hand; −1: it takes no part

    struct host_room { // bytes of a file system, of its latest heartbeat; size 0: not known
        int64_t free, size;
    } room[HOST_ROOMS];

    // ---- of its latest registration ----
    Weft__V1__Register *about; // without its attempts; empty before the first, never null
    int ndevices;
    struct host_device *devices; // [ndevices], as about->devices
};

struct fenced { // an incarnation that is never accepted again
    struct list link;
    char host[ID_LEN], incarnation[ID_LEN];
    enum fence_reason why;
    int64_t t_ms;
};

struct host *host_find(const struct coord *c, const char *id);
// An id, a name, or a unique start of an id. Null with `e`.
struct host *host_of(const struct coord *c, const char *target, struct err *e);
// Returns the known host as it is, or a new one of which only id and incarnation are known.
struct host *host_add(struct coord *c, const char *id, const char *incarnation);
void hosts_free(struct coord *c);

const char *host_name(const struct host *h); // never empty
// Gives it the name that it asks for. One that another host has already gets the start of its id
// behind it, unless its certificate vouches for the name and the other's does not.
void host_call(struct coord *c, struct host *h, const char *name, bool vouched);
void host_forget(struct coord *c, const char *id); // if coord_host_gives_way
enum host_state host_state(const struct host *h);
bool host_takes_work(const struct host *h);
int host_count_devices(const struct host *h, int kind);
bool host_is(const struct host *h, const char *incarnation);       // lives as this one, not fenced
bool host_silent(const struct coord *c, const struct host *h);     // for more than a heartbeat
void host_take_about(struct host *h, const Weft__V1__Register *r); // what it registers with
const char *host_lacks(const struct host *h, int kind); // why it has none of these; null: not said
void host_hold(struct host *h, int device, struct job_record *j, int rank); // j null: gives back
void host_idle(struct coord *c, struct host *h, int device); // the process on it is gone
void host_touch(struct coord *c, struct host *h);            // its row is to be written
// A rank on it failed by no fault of the job. Returns for how long the host is avoided now, in ns.
int64_t host_trouble(struct coord *c, struct host *h);
bool host_is_avoided(const struct coord *c, const struct host *h);

void fence_add(struct coord *c, const struct fenced *f);   // from a row
void fence_write(struct coord *c, const struct fenced *f); // and its row
const struct fenced *fence_find(const struct coord *c, const char *host, const char *incarnation);

void hosts_started(struct coord *c);      // all rows are in
void hosts_renew_leases(struct coord *c); // all leases begin now
void hosts_sweep(struct coord *c);        // forgets who has been gone for long
void hosts_flush(struct coord *c);
