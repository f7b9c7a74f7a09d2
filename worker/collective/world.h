// SPDX-License-Identifier: Apache-2.0
// Inside worker/collective: what its files share. Users include collective.h alone.
#pragma once
#include "worker/collective/peer_page.h"

struct link; // tcp.c

struct peer {
    int rank;
    bool local; // on this host (this rank itself too)
    int fd;     // −1: this rank, or a fake's
    struct page *page;
    unsigned char *window; // local peers' only
    size_t window_size;
    struct link *link;            // remote peers' only
    struct comm *comms[COMM_MAX]; // remote: by the peer's slot, found on first use
    bool dead;                    // end of file or a broken connection
    char why[160];                // how it died, if more is known
};

// How ranks wake each other and wait.
struct transport {
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
    uint64_t epoch;
    int64_t connect_ns, deadline_ns;
    struct progress_page *progress;
    const struct transport *t;
    void *tx; // the transport's own
    struct page *page;
    unsigned char *window;
    size_t window_size;
    struct peer *peers; // [ranks]
    int remotes;
    int spin;   // turns before a nap
    bool yield; // more ranks than cores: give the core away while spinning
    bool moved; // set by whatever made progress
    struct comm *comms[COMM_MAX];
    int ncomms;
    struct comm *waits; // the one whose operation is waited for; null: none
    uint64_t number;
    struct err broken;        // code 0: whole
    _Atomic uint32_t aborted; // 0, 1 while why is written, 2
    char abort_why[200];
};

struct coll {
    struct coll_args args;
    uint64_t seq, number;
    size_t bytes;               // of the whole tensor
    size_t esize;               // of an element
    int64_t per;                // elements a slice (the last may be shorter)
    bool inlined, agreed;       // agreed: everyone announced the same operation
    size_t ready;               // bytes of this rank's slice that may go out in the gather stage
    int seen;                   // members whose announcement was checked
    uint64_t *sent[2], *got[2]; // [member]: bytes of the scatter and the gather stage
    uint64_t *allowed;          // [member]: what we let it send for the scatter stage
};

struct comm {
    struct world *w;
    char name[TEXT];
    uint64_t key;
    int slot; // in this rank's page
    int n, me;
    struct peer **members;
    int *slots;                          // of each member's page; −1: not seen yet
    bool remote;                         // a member lives on another host
    uint64_t started, worked, completed; // sequence numbers
    struct coll ops[COLL_MAX_OPEN];
    uint64_t *counters;   // behind the ops' arrays
    unsigned char *stage; // [member] × STAGE, if a member is remote
    const void **src;     // [n], scratch of the reduction
    void **dst;
    bool freed;
};

// ---- world.c ----
struct world *world_new(int rank, int ranks, const struct transport *t); // peers filled by caller
void world_free(struct world *w);
// Breaks the world for good: tells the peers and keeps the error for every later call.
int world_break(struct world *w, struct err *e);
int world_look(struct world *w, struct err *e); // broken or aborted
// Steps until ready() says so. ERR_TIMEOUT without breaking the world: the caller knows what was
// awaited. Every other error breaks it.
int world_wait(struct world *w, bool (*ready)(void *arg), void *arg, int64_t limit_ns,
               struct err *e);
bool world_step(struct world *w);                 // moves what can move now; true: something did
void world_wake(struct world *w, struct peer *p); // after a store p may wait for

// ---- shm.c: pages and windows as memfds, unix sockets ----
int shm_page_new(struct world *w, int *fd, struct err *e);
int shm_send(struct peer *p, char type, int fd, struct err *e); // 'P' page, 'W' window
void shm_read(struct world *w, struct peer *p); // everything that came; marks it dead at the end
int shm_window(struct world *w, size_t bytes, int *fd, struct err *e);
void *shm_private(size_t bytes); // null when there is no memory

// ---- greet.c: the connections of world_open ----
int greet_all(struct world *w, const struct world_options *o, struct err *e);

// ---- tcp.c: frames between hosts ----
struct link *link_new(void);
void link_free(struct link *l);
void link_comm(struct peer *p, int slot, uint64_t key);
void link_note(struct world *w, struct peer *p, int slot, const struct note *n);
void link_grant(struct peer *p, int slot, uint64_t seq, uint64_t upto);
void link_bye(struct world *w, struct peer *p);
bool link_in(struct world *w, struct peer *p); // true: something came
bool link_out(struct world *w, struct peer *p);
bool link_flushed(const struct peer *p); // nothing waits to be sent but operands
bool link_blocked(const struct peer *p); // the socket takes no more now

// ---- comm.c: communicators and what was announced in them ----
// What an operation is made of. The scatter stage brings each slice's operands to its owner, the
// gather stage the owner's slice to everybody.
struct kind {
    const char *name;
    bool scatter, gather;
    bool sums, even;                                // f32, bf16; the count must divide by the size
    bool (*work)(struct comm *c, struct coll *o);   // false: not finished yet
    void (*finish)(struct comm *c, struct coll *o); // the same from the notes' payloads
};
extern const struct kind coll_kinds[]; // [enum coll_op], local.c
struct span {
    size_t at, len; // bytes
};
// The same operation seen from another member: who sends to a receiver.
enum coll_op op_counterpart(enum coll_op op);
struct span op_slice(const struct comm *c, const struct coll *o, int member);
struct note *op_note(const struct comm *c, const struct coll *o, int member); // null: unknown yet
bool op_announced(struct comm *c, struct coll *o, int member);
// Everyone announced the same; a difference breaks the world.
bool op_agree(struct comm *c, struct coll *o);
bool op_owes(struct comm *c, struct coll *o, int member);   // it has not done its part yet
int op_late(struct comm *c, struct coll *o, struct err *e); // ERR_TIMEOUT naming the missing
int comms_deserter(const struct world *w); // a rank that left before its part, or −1
uint64_t comms_awaited(struct world *w);   // who holds us up, as progress_page's word
void comm_delete(struct comm *c);

// ---- local.c: the operations, and what tcp.c asks of them ----
struct chunk {
    struct comm *comm;
    struct coll *op;
    int stage; // 0: operands to the slice's owner, 1: the owner's results to all
    int member;
    uint64_t offset;
    const unsigned char *data;
    size_t len;
};
bool comm_next_chunk(struct comm *c, const struct peer *p, struct chunk *out);
void comm_sent(struct world *w, const struct chunk *k);
// Where `len` bytes that p sent belong; null if they were not asked for.
unsigned char *comm_place(struct comm *c, const struct peer *p, int stage, uint64_t seq,
                          uint64_t offset, size_t len, struct chunk *out);
void comm_got(struct world *w, const struct chunk *k);
void comm_step(struct comm *c);
bool comms_step(struct world *w); // every open operation; true: something moved
