// SPDX-License-Identifier: Apache-2.0
// Inside worker/collective/ only: what the files of the hosts' collectives share.
#pragma once
#include <pthread.h>

#include "worker/collective/peer_page.h"

struct tcp_link; // tcp.c

enum { SEAL_KEY = 16, SEAL_TAG = 16 };
struct seal_keys { // of one connection, one for each direction
    unsigned char sends[SEAL_KEY], receives[SEAL_KEY];
};

struct peer {
    int rank;
    bool local; // on this host (this rank itself too)
    int fd;     // −1: this rank, or a fake's
    struct peer_page *page;
    unsigned char *window; // local peers' only
    size_t window_size;
    struct tcp_link *link; // remote peers' only
    struct seal_keys keys; // of the connection, from the greeting until the link has them
    // Remote: by the peer's slot, found on first use.
    struct communicator *communicators[WORLD_COMMUNICATORS];
    bool dead;     // end of file or a broken connection
    char why[160]; // how it died, if more is known
};

// How ranks wake each other and wait.
struct world_kind {
    void (*wake)(struct world *w, struct peer *p);
    bool (*pump)(struct world *w); // moves what can move now; null: nothing to move
    // Waits until woken, or until_ns of the monotonic clock (0: no limit). An error breaks the
    // world.
    int (*nap)(struct world *w, int64_t until_ns, struct err *e);
    int (*window)(struct world *w, size_t bytes, struct err *e);
    void (*poke)(struct world *w); // world_abort, any thread: ends the nap
    void (*close)(struct world *w);
};

struct world {
    int rank, ranks;
    uint64_t attempt;
    int64_t connect_ns, deadline_ns;
    struct progress_page *progress;
    const struct world_kind *kind;
    void *own; // the kind's own
    struct peer_page *page;
    unsigned char *window;
    size_t window_size;
    struct peer *peers; // [ranks]
    int remotes;
    int spin;                       // turns before a nap
    bool yield;                     // more ranks than cores: give the core away while spinning
    int threads;                    // of ours that compute
    int cores;                      // of this host for each of its ranks; 0: not known
    bool spare_cores;               // the host has one for each rank's progress thread
    bool moved;                     // set by whatever made progress
    struct progress_thread *thread; // null: only the rank's own thread moves data
    pthread_mutex_t lock;           // world_lock
    _Atomic bool rank_comes;        // the rank's own thread wants it
    struct communicator *communicators[WORLD_COMMUNICATORS];
    int ncommunicators;
    struct communicator *everyone; // world_gather's; null: not yet
    struct communicator *waits;    // the one whose operation is waited for; null: none
    uint64_t number, left;         // of the newest operation, and of the newest that is complete
    struct err broken;             // code 0: whole
    _Atomic uint32_t aborted;      // 0, 1 while why is written, 2
    char abort_why[200];
    pthread_mutex_t listener_lock; // of the next two
    void (*listener)(void *ctx, const char *why);
    void *listener_ctx;
};

struct operation {
    struct collective_args args;
    uint64_t seq, number;
    size_t bytes;               // of the whole tensor
    size_t esize;               // of an element
    int64_t per;                // elements a slice (the last may be shorter)
    bool inlined, agreed;       // agreed: everyone announced the same operation
    size_t ready;               // bytes of this rank's slice that may go out in the gather stage
    int seen;                   // members whose announcement was checked
    int from;                   // copies: the member whose turn it is,
    size_t copied;              // and how much of its part is here
    uint64_t *sent[2], *got[2]; // [member]: bytes of the scatter and the gather stage
    uint64_t *allowed;          // [member]: what we let it send for the scatter stage
};

struct communicator {
    struct world *w;
    char name[TEXT];
    uint64_t key;
    int slot; // in this rank's page
    int n, me;
    struct peer **members;
    int *slots;                          // of each member's page; −1: not seen yet
    bool remote;                         // a member lives on another host
    uint64_t started, worked, completed; // sequence numbers
    struct operation ops[COLLECTIVES_OPEN];
    uint64_t *counters;   // behind the ops' arrays
    unsigned char *stage; // [member] × STAGE, if a member is remote
    const void **src;     // [n], scratch of the reduction
    void **dst;
    bool freed;
};

// A piece of an operation that goes from host to host.
struct chunk {
    struct operation *op;
    int stage; // 0: operands to the slice's owner, 1: the owner's results to all
    int member;
    uint64_t offset;
    const unsigned char *data;
    size_t len;
};

// ---- world.c ----
struct world *world_new(int rank, int ranks,
                        const struct world_kind *kind); // peers filled by caller
void world_free(struct world *w);
// Breaks the world for good: lets the peers know and keeps the error for every later call.
int world_break(struct world *w, struct err *e);
int world_look(struct world *w, struct err *e);          // broken or aborted
int world_look_at_peers(struct world *w, struct err *e); // one died, broke, or left too soon
// Steps until ready() says so. ERR_TIMEOUT without breaking the world: the caller knows what was
// awaited. Every other error breaks it.
int world_wait(struct world *w, bool (*ready)(void *arg), void *arg, int64_t limit_ns,
               struct err *e);
bool world_is_open(struct world *w);              // an operation is open, and the world is whole
bool world_step(struct world *w);                 // moves what can move now; true: something did
void world_wake(struct world *w, struct peer *p); // after a store p may wait for

// ---- progress_thread.c: data moves while the rank computes ----
bool progress_is_wanted(const struct world *w);
// is_open: there is something to move; step moves some of it and says whether any did. Both are
// called under the lock. Where no thread can be started that is logged.
void progress_start(struct world *w, bool (*is_open)(struct world *w),
                    bool (*step)(struct world *w));
void progress_stop(struct world *w);  // without a thread this does nothing, as does the next
void progress_begin(struct world *w); // an operation was started; called under the lock
void world_lock(struct world *w); // the rank's own thread goes first, before the progress thread
void world_unlock(struct world *w);

// ---- shm.c: pages and windows as memfds, unix sockets ----
int shm_page_new(struct world *w, int *fd, struct err *e);
int shm_send(struct peer *p, char type, int fd, struct err *e); // 'P' page, 'W' window
void shm_read(struct world *w, struct peer *p); // everything that came; marks it dead at the end
int shm_window(struct world *w, size_t bytes, int *fd, struct err *e);
void *shm_private(size_t bytes); // null when there is no memory

// ---- greet.c: the connections of world_open ----
int greet_all(struct world *w, const struct world_options *o, struct err *e);

// ---- seal.c: one direction of a connection between hosts, encrypted and authenticated ----
struct seal *seal_new(const unsigned char key[SEAL_KEY], bool sends); // null: no memory
void seal_free(struct seal *s);
// Writes len + SEAL_TAG bytes at `to`, which may be `from`.
bool seal_part(struct seal *s, unsigned char *to, const void *from, size_t len);
// Decrypts more of a part in place. Nothing of it is to be believed before seal_check, at its end.
bool seal_open(struct seal *s, unsigned char *at, size_t len, bool first);
bool seal_check(struct seal *s, unsigned char tag[SEAL_TAG]);

// ---- tcp.c: frames between hosts ----
struct tcp_link *tcp_link_new(const struct seal_keys *keys); // null: they travel plain
void tcp_link_free(struct tcp_link *l);
void tcp_send_key(struct peer *p, int slot, uint64_t key);
void tcp_send_note(struct world *w, struct peer *p, int slot, const struct note *n);
void tcp_send_grant(struct peer *p, int slot, uint64_t seq, uint64_t upto);
void tcp_send_bye(struct world *w, struct peer *p);
bool tcp_receive(struct world *w, struct peer *p); // true: something came
bool tcp_send(struct world *w, struct peer *p);
bool tcp_is_flushed(const struct peer *p); // nothing waits to be sent but operands
bool tcp_is_blocked(const struct peer *p); // the socket takes no more now

// ---- collective_op.c: what the operations are made of ----
// The scatter stage brings each slice's operands to its owner, the gather stage the owner's slice
// to everybody.
struct operation_kind {
    const char *name;
    bool scatter, gather;
    bool sums; // f32 or bf16 alone
    bool even; // the count must divide by the size
};
extern const struct operation_kind operation_kinds[]; // [enum collective_op]
// The operation that the other members run: a receive's is a send and the other way round, all
// others are the same for everybody.
enum collective_op collective_counterpart(enum collective_op op);

// ---- announce.c: what an operation's members announced, and who is missing ----
struct span {
    size_t at, len; // bytes
};
struct span operation_slice(const struct communicator *c, const struct operation *o, int member);
// The member's note, null while it is unknown where it lies.
struct note *operation_note(const struct communicator *c, const struct operation *o, int member);
// Whether every member has announced, and all the same: a difference breaks the world.
bool operation_agrees(struct communicator *c, struct operation *o);
// Whether the member still has to do its part.
bool operation_owes(struct communicator *c, struct operation *o, int member);
int operation_late(struct communicator *c, struct operation *o, struct err *e); // names the missing
int find_deserter(const struct world *w); // a rank that left before its part, or −1
uint64_t find_awaited(struct world *w);   // who holds us up, as progress_page's word

// ---- communicator.c ----
void communicator_delete(struct communicator *c);

// ---- operation.c: the operations ----
bool communicators_step(struct world *w); // every open operation; true: something moved
// What goes to p next; place_chunk: where `len` bytes from p belong, null if they were not asked for.
bool next_chunk(struct communicator *c, const struct peer *p, struct chunk *out);
void chunk_went(struct world *w, const struct chunk *k);
unsigned char *place_chunk(struct communicator *c, const struct peer *p, int stage, uint64_t seq,
                           uint64_t offset, size_t len, struct chunk *out);
void chunk_came(struct world *w, const struct chunk *k);
