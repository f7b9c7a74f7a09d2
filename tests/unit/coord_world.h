// SPDX-License-Identifier: Apache-2.0
// A world for the coordinator's decider: a database of rows, hosts whose agents answer by
// themselves unless a flag below says otherwise, ranks, and a disk with checkpoints. Time moves only by
// world_pass(). Every write is checked against what the database holds, every move against the
// table in job_record.c.
#pragma once
#include <stdbool.h>

#include "common/base/clock.h"
#include "coordinator/decide/coord.h"
#include "coordinator/decide/host.h"
#include "tests/support/stored_row.h"
#include "tests/unit/unit.h"

enum { HOSTS = 6, DEVICES = 8, RANKS = 16, ROWS = 4000, SAVES = 64, QUEUE = 4000 };

#define STATE(name) JOB_##name

struct world_rank {
    bool alive;
    int device;
    bool ended; // `end` was sent or is to be
    int code, signal;
    int unreached; // 1 + the rank that it did not find at its address; 0: none
    int64_t step;
};
struct world_attempt { // on one host
    bool used, reaped;
    char job[33];
    uint64_t number;
    int nranks; // of the whole attempt
    bool agreed;
    bool commit_open; // an order has not been answered
    int64_t commit_step;
    struct world_rank ranks[RANKS];
};
struct world_host {
    char id[33], incarnation[33], name[40], rack[16], share[16];
    char address[40];
    const char *data_root, *checkpoint_root; // null: none
    const char *certificate;                 // whose its streams are; null: none
    const char *no_gpu;                      // why it has none; null: it does not say
    int devices, cores;
    uint64_t conn;  // 0: away
    bool stopped;   // says nothing, hears nothing
    bool exited;    // fenced as a twin
    bool unmounted; // sees no job's folder to delete
    struct world_attempt attempts[8];
};
struct world_save {
    char job[33];
    uint64_t attempt;
    int64_t step;
    bool bad, gone;
};
struct message {
    uint64_t conn;
    Weft__V1__Down *down; // the heap's
};
struct world {
    struct coord *c;
    int64_t now, wall;
    const char *boot;        // of the coordinator's machine
    const char *user;        // who submits and acts; null: ann
    const char *threads_why; // said with what is submitted; null: nothing
    const char *before;      // the text that a submit was compared with; null: none
    long written;            // rows, over its life
    int nrows;
    struct stored_row *rows[ROWS]; // what a test changes in a struct is what a restart reads
    struct world_host hosts[HOSTS];
    uint64_t conns, calls;
    int seeds;
    struct world_save saves[SAVES];
    int nsaves;
    uint64_t fences[SAVES]; // greatest attempt fenced; one folder a test is enough
    struct message queue[QUEUE];
    int nqueue, head;
    // what agents leave undone
    bool no_storage, no_fence, no_start, no_ready, no_stop, no_commit, no_leave;
    const char *storage_fails;
    int tidied; // folders of jobs that have ended
    uint64_t tidied_attempt;
    int deletions;      // asked for, of whichever host
    const char *source; // what a fence says that the job begins with; null: nothing
    int64_t source_step;
    int64_t asked_back;                  // step that the newest fence goes back to; -1: to none
    char asked_source[100], notice[500]; // of the newest fence and submit
    bool storage_config, storage_full;
    const char *receivers[4]; // of notices; the next restart's has them
    int nreceivers;
    int posts; // notices that were sent; the newest:
    char post_receiver[64], post[4000];
    char post_ids[2][80]; // of the newest to each of `receivers`
    bool restored;        // the next restart's database is an older copy, says a person
    // the newest of each
    char reply_job[33], refused[1000], dropped[300];
    int refused_code, starts, fenced_out, stops;
    int threads; // of the newest Start
    bool twin;
    int answers;                        // COORD_REPLY so far
    int barriers_done, barriers_failed; // answers that ranks got
    char barrier_text[400];
    Weft__Rank__BarrierDone *barrier; // newest answer: an agent brings it
};

// A case begins in an empty world of its own: CASE(test_…) in the list of tests.
int world_setup(void **state);
int world_teardown(void **state);
#define CASE(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

void world_init(struct world *w);
void world_clear(struct world *w);
void world_host(struct world *w, int host, int devices); // knows it and attaches it
void world_host_without_address(struct world *w, int host, int devices);
void world_attach(struct world *w, int host); // Hello … Registered, if it may
void world_detach(struct world *w, int host);
void world_reborn(struct world *w, int host); // its processes are gone, a new incarnation attaches
void world_pass(struct world *w, int64_t ms); // in ticks, with heartbeats
void world_restart(struct world *w);          // the coordinator; all agents attach again
void world_crash(struct world *w);            // the coordinator, and nobody attaches yet
void world_up(struct world *w, int host, Weft__V1__Up *up);

// A job of `ranks` devices and 10 steps; `more` are lines of the job file. Its id, or "".
const char *world_submit(struct world *w, const char *name, int ranks, const char *more);
#define CALM        "restart: {hang_after: 2h}\n" // nobody hangs: time may pass
#define PRIORITY(n) CALM "resources: {priority: " #n "}\n"
// Host 0 with `ranks` devices, and the job "tiny" that takes them all.
const char *world_job_alone(struct world *w, int ranks, const char *more);
const char *world_submit_as(struct world *w, const char *request, const char *name, int ranks,
                            const char *more);
bool world_act(struct world *w, Weft__V1__Verb verb, const char *target); // false: refused

// What became of the notice that a receiver was sent.
void world_take_post(struct world *w, const struct coord_action *a);
void world_posted(struct world *w, const char *receiver, enum post_result result, const char *why);

const struct job_record *world_job(struct world *w, const char *id); // as its row says
enum job_state world_state(struct world *w, const char *id);
int world_events(struct world *w, const char *job, const char *kind); // how many
const char *world_event_text(struct world *w, const char *job,
                             const char *kind);           // text of the newest
const char *world_next(struct world *w, const char *job); // what it waits for; until the next call
struct world_attempt *world_at(struct world *w, int host, const char *job); // living here, or null
int world_living(struct world *w, const char *job);                         // ranks, over all hosts
int world_host_of(struct world *w, const char *job, int rank);

void world_step(struct world *w, const char *job, int64_t step); // all ranks show it, 0 reports
void world_save(struct world *w, const char *job,
                int64_t step); // all shards; committed unless no_*
void world_shard(struct world *w, const char *job, int rank, int64_t step, int code);
// The same, whose folder had been removed and was made again for it.
void world_shard_anew(struct world *w, const char *job, int rank, int64_t step);
void world_die(struct world *w, const char *job, int rank, int code, int signal);
void world_die_saying(struct world *w, const char *job, int rank, int code, const char *why);
void world_finish(struct world *w, const char *job); // the last step, saved; all leave with 0
void world_frame(struct world *w, const char *job, int rank, Weft__Rank__Frame *f);
void world_page(struct world *w, const char *job, int rank, int64_t step, int state,
                uint64_t collective);

// ---- between coord_world.c and coord_people.c ----
void world_event(struct world *w, struct coord_event *ev);
void world_pump(struct world *w);                      // what was sent arrives
int world_row(const struct world *w, const char *key); // −1: none
void world_drop_row(struct world *w, int at);
void world_rank_frame(struct world *w, int host, const struct world_attempt *at, int rank,
                      Weft__Rank__Frame *f);
void world_show(struct world *w, int host, const struct world_attempt *at, int rank, int state,
                uint64_t collective);
void world_end(struct world *w, int host, struct world_attempt *at, int rank, int code, int signal,
               const char *why);

#define UP(name, CASE, member, ptr)             \
    Weft__V1__Up name = WEFT__V1__UP__INIT;     \
    name.body_case = WEFT__V1__UP__BODY_##CASE; \
    name.member = (ptr)
#define NEW(Type, type, name) \
    Weft__V1__##Type name;    \
    weft__v1__##type##__init(&name)

#define assert_state(w, job, name) assert_int_equal(world_state((w), (job)), STATE(name))
