// SPDX-License-Identifier: Apache-2.0
// A simulated cluster: one coordinator, its database, hosts with their workers and ranks, the
// network between them, clients, and the checks that watch it all.
//
//   clients ─► coordinator (the real coord_step) ─► dbase
//                 │ net: packed messages
//              host (the real agent_step) ─► rank ─► disk (the real store.c)
//
// From BLAME_SEEDS on only ranks and the coordinator fail, so that whom the leader of an attempt
// blames can be held against what befell its ranks.
#pragma once
#include "coordinator/decide/coord.h"
#include "tests/sim/disk.h"
#include "tests/sim/fault.h"
#include "tests/sim/sim.h"
#include "worker/agent/agent.h"

enum { MAX_HOSTS = 32, MAX_SLOTS = 64, MAX_DEVICES = 8, MAX_RANKS = 16 };

// A kind of job. They are few and made once: parsing one takes longer than a schedule's second.
struct variant {
    char *resolved;
    char name[32];
    int ranks;
    int64_t steps, every;
    int keep;
    bool async, best; // best: checkpoint.best is eval_loss
};

// ---- net.c ----
struct packet {
    struct packet *next;
    int64_t at;
    size_t len;
    uint8_t *data;
};
struct pipe_way {
    struct packet *first, *last;
    int64_t latest; // delivery times only grow
    bool cut;       // what is sent from now on goes nowhere
    bool fin;       // the receiver hears the end after what is queued
    bool told;      // it has heard it
};
struct conn {
    struct world *w;
    uint64_t id;
    struct host *host;
    struct proc *agent, *coordinator; // the processes that hold its ends
    struct pipe_way up, down;
    struct conn *next;
};
void net_open(struct host *h, int64_t wait_ns); // ends in host_opened or host_closed
void net_up(struct conn *c, const Weft__V1__Up *m);
void net_down(struct world *w, uint64_t conn, const Weft__V1__Down *m);
void net_break(struct conn *c);        // both ends hear of it, each in its time
void net_agent_leaves(struct conn *c); // it closed its end, or died
void net_coordinator_drops(struct world *w, uint64_t conn);
void net_coordinator_died(struct world *w);
void net_partition(struct host *h, bool up, bool down, int64_t ns);

// ---- dbase.c: rows, applied a transaction at a time ----
struct dbase;
struct dbase *dbase_new(struct world *w);
void dbase_commit(struct dbase *d, const struct row *v, int n);
void dbase_load(struct dbase *d, struct coord *c);
void dbase_roll_back(struct dbase *d); // to an older transaction
void dbase_delete(struct dbase *d);
void dbase_free(struct dbase *d);

// ---- sim_coordinator.c: the coordinator's main loop ----
struct sim_coordinator_input;
struct turn;
struct sim_coordinator {
    struct world *w;
    struct proc *proc; // null: down
    struct coord *coord;
    struct sim_coordinator_input *first, *last;
    bool turning;
    struct turn *turn; // under way
    int64_t timer;     // when the next TICK is due
    uint64_t life;
    bool restored;    // its database was set back since it ran
    char cluster[33]; // beside the database
};
void sim_coordinator_start(struct world *w);
void sim_coordinator_die(struct world *w);
void sim_coordinator_hear(struct world *w, enum coord_event_kind kind, uint64_t conn,
                          const uint8_t *data, size_t len);
struct call;
void sim_coordinator_call(struct world *w, struct call *c);

// ---- sim_host.c ----
struct slot {
    bool used;
    struct rank *rank;
    struct page_view told;
};
struct host {
    struct world *w;
    int index;
    char id[33], name[16], cluster[33], incarnation[33];
    int ndevices;
    struct proc *proc; // of the worker; null: down
    struct agent *agent;
    struct conn *conn;
    struct slot slots[MAX_SLOTS];
    struct rank *living; // of every life of the worker: who holds ranks.lock
    bool twin;           // another machine was copied from this one, or it is the copy
    bool clearing, booting, gone, polling, off; // gone: exited for good; off: no power
    int64_t timer;
    bool blocked_up, blocked_down;
    uint64_t partition;
};
void host_boot(struct host *h);
void host_worker_dies(struct host *h);
void host_power_off(struct host *h);
void host_stop(struct host *h, int64_t ns); // the whole machine stands still
void host_term(struct host *h);
void host_opened(struct host *h, struct conn *c);
void host_closed(struct host *h, const char *why);
void host_received(struct host *h, const uint8_t *data, size_t len);
void host_rank_says(struct rank *r, const Weft__Rank__Frame *f);
void host_rank_ended(struct rank *r, int code, int signal);
void host_step(struct host *h, struct agent_event *ev);
void storage_do(struct host *h, const Weft__V1__Storage *op); // sim_storage.c

// ---- rank.c ----
struct rank *rank_spawn(struct host *h, int slot, const struct agent_spawn *s);
void rank_hear(struct rank *r, const Weft__Rank__Frame *f);
void rank_kill(struct rank *r, int64_t after_ns);
void rank_fails(struct rank *r, int code);   // code < 0: by a signal
void rank_hangs(struct rank *r, int64_t ns); // stops; 0: for good

// ---- the world ----
struct call {
    struct call *next;
    struct world *w;
    uint64_t id;
    bool submit, answered, refused;
    char request[33];
    const struct variant *variant;
    Weft__V1__Verb verb;
    char target[33];
    uint8_t *reply;
    size_t reply_len;
    int tries;
    bool replaced; // by another submit, as nobody knows the job any more
};
struct world {
    struct sim sim;
    struct disk disk;
    struct dbase *db;
    struct sim_coordinator coordinator;
    struct host hosts[MAX_HOSTS];
    int nhosts;
    struct conn *conns;
    uint64_t next_conn, next_call;
    struct sim_attempt *attempts;
    struct call *calls;
    struct check *check;
    const struct fault_mix *mix;
    struct trap trap;
    struct proc *struck; // whom the moment was of: faults prefer it
    bool quiet, db_harmed, done;
    int64_t quiet_ns;
    int64_t lease;
};
struct sim_result {
    bool failed;
    char why[600];
    uint64_t events;
};
const struct variant *variant_at(int i); // sim_world.c
int variant_count(void);
const struct variant *variant_of(const char *resolved);
#define BLAME_SEEDS UINT64_C(1000000000)
void world_run(uint64_t seed, bool tracing, struct sim_result *out);
void world_free_all(void);

void client_begin(struct world *w, int jobs); // client.c
void client_act(struct world *w, Weft__V1__Verb verb, const char *target);
void client_fault(struct world *w);
void client_watch(struct world *w); // in the quiet phase: sets w->done
void client_answered(struct call *c, const uint8_t *reply, size_t len);
void client_refused(struct call *c, int code, const char *text);
