// SPDX-License-Identifier: Apache-2.0
// Devices that wait for each other for ever, found as soon as they do. See fake_nccl.h.
//
// A device here does its calls strictly one after the other, so it cannot come to a call before it has
// left the one that it is in. Each process shows in a file of shared memory which call it is in, with
// whom, and how far it came on each communicator. Whoever stands still follows these: to a peer that has
// not come to its call, from there to a peer of the call that this one is in, and so on. A way that leads
// back to itself is for ever if no process on it moved while it was looked at twice.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_nccl.h"

struct standing {
    uint64_t turn;        // grows with each change; odd during one
    uint64_t nonce, call; // what it is in; nonce 0: no call
    int peers, others;
    struct process peer[MOST_RANKS];
    struct before begun[MOST_COMMS]; // calls on each communicator that it has come to
};

static struct standing *own;
static struct process self;

struct process wait_process(void)
{
    if (own && self.pid == (int)getpid())
        return self;
    self = (struct process){(int)getpid(), memfd_create("weft-nccl-standing", MFD_CLOEXEC)};
    if (self.file < 0 || ftruncate(self.file, sizeof *own))
        abort();
    own = mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED, self.file, 0);
    if (own == MAP_FAILED)
        abort();
    return self;
}

static void change(void)
{
    __atomic_fetch_add(&own->turn, 1, __ATOMIC_SEQ_CST);
}

void wait_enter(const struct ncclComm *c, uint64_t call, uint64_t end, const bool *peers)
{
    int at = 0;
    change();
    while (at < own->others && own->begun[at].nonce != c->nonce)
        at++;
    if (at == MOST_COMMS)
        abort();
    own->others += at == own->others;
    own->begun[at] = (struct before){c->nonce, end};
    own->nonce = c->nonce;
    own->call = call;
    own->peers = 0;
    for (int r = 0; r < c->n; r++)
        if (peers[r])
            own->peer[own->peers++] = c->shared->process[r];
    change();
}

void wait_leave(void)
{
    change();
    own->nonce = 0;
    own->peers = 0;
    change();
}

static bool read_standing(const struct process *of, struct standing *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", of->pid, of->file);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool whole = file >= 0 && pread(file, out, sizeof *out, 0) == sizeof *out;
    if (file >= 0)
        close(file);
    return whole && out->turn % 2 == 0;
}

static bool has_come(const struct standing *peer, uint64_t nonce, uint64_t call)
{
    for (int i = 0; i < peer->others; i++)
        if (peer->begun[i].nonce == nonce)
            return peer->begun[i].calls > call;
    return false;
}

struct way {
    int n;
    struct process process[MOST_COMMS];
    uint64_t turn[MOST_COMMS];
};

static bool stands_still(const struct way *w)
{
    struct standing now;
    for (int i = 0; i < w->n; i++)
        if (!read_standing(&w->process[i], &now) || now.turn != w->turn[i])
            return false;
    return true;
}

// Follows whom `at`, the last on the way, waits for, until that is this process.
static bool leads_back(struct way *w, const struct standing *at)
{
    for (int p = 0; p < at->peers; p++) {
        struct standing peer;
        if (!read_standing(&at->peer[p], &peer) || has_come(&peer, at->nonce, at->call))
            continue;
        if (at->peer[p].pid == self.pid)
            return stands_still(w);
        bool known = w->n == MOST_COMMS;
        for (int i = 0; i < w->n; i++)
            known |= w->process[i].pid == at->peer[p].pid;
        if (known)
            continue;
        w->process[w->n] = at->peer[p];
        w->turn[w->n++] = peer.turn;
        if (leads_back(w, &peer))
            return true;
        w->n--;
    }
    return false;
}

void wait_check(const struct ncclComm *c)
{
    struct way w = {.n = 1, .process = {self}, .turn = {own->turn}};
    if (leads_back(&w, own))
        END_PROGRAM(c,
                    "call %llu is for ever: %d devices wait for each other's calls, which they "
                    "launched in orders that do not fit",
                    (unsigned long long)own->call, w.n);
}
