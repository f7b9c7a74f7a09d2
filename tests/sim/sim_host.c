// SPDX-License-Identifier: Apache-2.0
// A simulated host: the worker's main loop around the real agent, its ranks as processes, and
// ranks.lock, which a starting or fenced worker gets once none of them is left.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/sim/rank.h"
#include "tests/sim/sim_check.h"

enum { CORE_MS = 300 };

static void step(struct host *h, struct agent_event *ev);

static bool alive(const struct host *h)
{
    return h->proc && !h->proc->dead;
}

// ---- time ----
static void ticks(void *arg, uint64_t due)
{
    struct host *h = arg;
    if (h->timer != (int64_t)due)
        return;
    h->timer = 0;
    step(h, &(struct agent_event){.kind = AGENT_EV_TICK});
}

static void arm(struct host *h)
{
    int64_t now = h->w->sim.now, due = agent_due(h->agent);
    if (!due)
        return;
    due = due > now ? due : now + MS;
    if (h->timer && h->timer <= due)
        return;
    h->timer = due;
    proc_after(h->proc, due - now, ticks, h, (uint64_t)due);
}

static int find_awaited(const struct rank *r)
{
    for (int i = 0; i < r->n && r->entered > r->left; i++)
        if (r->shared->rank[i] && r->shared->rank[i]->entered < r->entered)
            return i;
    return -1;
}

static struct page_view view_of(const struct rank *r)
{
    int awaits = find_awaited(r);
    return (struct page_view){.rank = r->rank,
                              .step = r->step,
                              .state = r->state,
                              .collective_entered = r->entered,
                              .collective_left = r->left,
                              .collective_text = SIM_COLLECTIVE,
                              .awaits = awaits + 1,
                              .awaits_entered = awaits < 0 ? 0 : r->shared->rank[awaits]->entered,
                              .stopped = r->proc.stopped};
}

static void looks_at_pages(void *arg, uint64_t tag)
{
    struct host *h = arg;
    bool any = false;
    (void)tag;
    h->polling = false;
    for (int i = 0; i < MAX_SLOTS && alive(h); i++) {
        struct slot *s = &h->slots[i];
        if (!s->used || !s->rank)
            continue;
        any = true;
        struct page_view v = view_of(s->rank);
        if (page_view_same(&s->told, &v))
            continue;
        s->told = v;
        step(h, &(struct agent_event){.kind = AGENT_EV_PAGE, .slot = i, .page = &s->told});
    }
    if (any && alive(h) && !h->polling) {
        h->polling = true;
        proc_after(h->proc, 500 * MS, looks_at_pages, h, 0);
    }
}

// ---- ranks.lock ----
static void worker_begins(struct host *h);

static void cleared(void *arg, uint64_t tag)
{
    struct host *h = arg;
    (void)tag;
    h->clearing = false;
    sim_hex(&h->w->sim, h->incarnation);
    step(h, &(struct agent_event){
                .kind = AGENT_EV_CLEARED, .ok = true, .incarnation = h->incarnation});
}

// Called when a rank has ended, or when somebody asks for the lock.
static void try_lock(struct host *h)
{
    if (h->living)
        return;
    if (h->booting && !h->off) {
        h->booting = false;
        worker_begins(h);
    } else if (h->clearing && alive(h)) {
        proc_after(h->proc, MS, cleared, h, 0);
    }
}

static int64_t dying_takes(struct sim *s)
{
    return sim_chance(s, 60) ? sim_between(s, S, 15 * S) : sim_between(s, 100000, 20 * MS);
}

static void kill_ranks(struct host *h)
{
    for (struct rank *r = h->living, *next; r; r = next) {
        next = r->next;
        rank_kill(r, dying_takes(&h->w->sim));
    }
}

// ---- between ranks and the agent: a socketpair each way ----
struct note {
    struct host *host;
    struct rank *rank;
    size_t len;
    uint8_t *data;
    int code, signal;
};

static struct note *pack(struct rank *r, const Weft__Rank__Frame *f)
{
    struct note *n = arena_new(&r->w->sim.arena, struct note);
    n->host = r->host;
    n->rank = r;
    if (f) {
        n->len = weft__rank__frame__get_packed_size(f);
        n->data = arena_alloc(&r->w->sim.arena, n->len + 1);
        weft__rank__frame__pack(f, n->data);
    }
    return n;
}

static int64_t in_order(struct sim *s, int64_t *latest)
{
    int64_t at = s->now + sim_between(s, 10000, 200000);
    *latest = at > *latest ? at : *latest;
    return *latest - s->now;
}

static bool still_there(const struct note *n)
{
    return n->rank->agent == n->host->proc && n->host->slots[n->rank->slot].rank == n->rank;
}

static void agent_reads(void *arg, uint64_t tag)
{
    struct note *n = arg;
    (void)tag;
    if (!still_there(n))
        return;
    Weft__Rank__Frame *f = weft__rank__frame__unpack(NULL, n->len, n->data);
    step(n->host, &(struct agent_event){.kind = AGENT_EV_FRAME, .slot = n->rank->slot, .frame = f});
    weft__rank__frame__free_unpacked(f, NULL);
}

void host_rank_says(struct rank *r, const Weft__Rank__Frame *f)
{
    if (r->agent->dead)
        return;
    proc_after(r->agent, in_order(&r->w->sim, &r->latest_up), agent_reads, pack(r, f), 0);
}

static void rank_reads(void *arg, uint64_t tag)
{
    struct note *n = arg;
    (void)tag;
    Weft__Rank__Frame *f = weft__rank__frame__unpack(NULL, n->len, n->data);
    rank_hear(n->rank, f);
    weft__rank__frame__free_unpacked(f, NULL);
}

static void agent_reaps(void *arg, uint64_t tag)
{
    struct note *n = arg;
    struct host *h = n->host;
    (void)tag;
    if (!still_there(n))
        return;
    int slot = n->rank->slot;
    h->slots[slot] = (struct slot){0};
    step(
        h,
        &(struct agent_event){
            .kind = AGENT_EV_ENDED, .slot = slot, .code = n->code, .signal = n->signal, .log = ""});
}

void host_rank_ended(struct rank *r, int code, int signal)
{
    struct host *h = r->host;
    if (!r->agent->dead) {
        struct note *n = pack(r, NULL);
        n->code = code;
        n->signal = signal;
        // A crashing process may write a core: its peers lose it before it can be reaped.
        int64_t core_ns =
            signal && h->w->mix->blames ? sim_between(&h->w->sim, 0, CORE_MS * MS) : 0;
        proc_after(r->agent, core_ns + in_order(&h->w->sim, &r->latest_up), agent_reaps, n, 0);
    }
    try_lock(h);
}

// ---- actions ----
static void spawned(void *arg, uint64_t tag)
{
    struct note *n = arg;
    (void)tag;
    if (still_there(n))
        step(n->host, &(struct agent_event){
                          .kind = AGENT_EV_SPAWNED, .slot = n->rank->slot, .ok = true, .pid = 1});
}

static void spawn(struct host *h, const struct agent_action *a)
{
    struct slot *s = &h->slots[a->slot];
    if (s->used)
        sim_fail(&h->w->sim, "%s: slot %d is given twice", h->name, a->slot);
    s->used = true;
    s->rank = rank_spawn(h, a->slot, a->spawn);
    s->told.step = -1;
    proc_after(h->proc, in_order(&h->w->sim, &s->rank->latest_up), spawned, pack(s->rank, NULL), 0);
    if (!h->polling) {
        h->polling = true;
        proc_after(h->proc, 100 * MS, looks_at_pages, h, 0);
    }
}

static void end_heard(void *arg, uint64_t tag)
{
    (void)tag;
    step(arg, &(struct agent_event){.kind = AGENT_EV_CLOSED, .text = "closed"});
}

static void disconnect(struct host *h)
{
    if (h->conn)
        net_agent_leaves(h->conn);
    h->conn = NULL;
    proc_after(h->proc, 100000, end_heard, h, 0);
}

static void boots(void *arg, uint64_t tag)
{
    (void)tag;
    host_boot(arg);
}

static void exits(struct host *h, int code)
{
    TRACE(&h->w->sim, h->name, "the worker exits with %d", code);
    host_worker_dies(h);
    if (code == 76)
        check_exit_fenced(h);
    // Asked to stop: whoever asked starts it again by and by. 70: the supervisor does.
    h->gone = code == 76;
    if (!h->gone)
        sim_after(&h->w->sim, sim_between(&h->w->sim, S, 5 * S), boots, h, 0);
}

static void clear_out(struct host *h)
{
    h->clearing = true;
    kill_ranks(h);
    try_lock(h);
}

static bool carry_out(struct host *h, const struct agent_action *a)
{
    struct slot *s = a->slot >= 0 && a->slot < MAX_SLOTS ? &h->slots[a->slot] : NULL;
    switch (a->kind) {
    case AGENT_CONNECT:
        net_open(h, a->wait_ns);
        break;
    case AGENT_DISCONNECT:
        disconnect(h);
        break;
    case AGENT_SEND:
        check_up(h, a->up);
        if (h->conn)
            net_up(h->conn, a->up);
        break;
    case AGENT_SPAWN:
        spawn(h, a);
        break;
    case AGENT_FRAME:
        if (s && s->rank && !s->rank->proc.dead)
            proc_after(&s->rank->proc, in_order(&h->w->sim, &s->rank->latest_down), rank_reads,
                       pack(s->rank, a->frame), 0);
        break;
    case AGENT_KILL:
        if (s && s->rank)
            rank_kill(s->rank, dying_takes(&h->w->sim));
        break;
    case AGENT_STORAGE:
        storage_do(h, a->storage);
        break;
    case AGENT_LOGS:
    case AGENT_FORGET:
        break;
    case AGENT_CLEAR:
        clear_out(h);
        break;
    case AGENT_REMEMBER:
        snprintf(h->cluster, sizeof h->cluster, "%s", a->cluster);
        break;
    case AGENT_EXIT:
        exits(h, a->code);
        return false;
    }
    return true;
}

static void step(struct host *h, struct agent_event *ev)
{
    struct arena a;
    struct agent_out out = {.arena = &a};
    arena_init(&a);
    ev->now_ns = h->w->sim.now;
    agent_step(h->agent, ev, &out);
    bool goes_on = true;
    for (int i = 0; i < out.n && goes_on; i++)
        goes_on = carry_out(h, &out.v[i]);
    if (goes_on)
        arm(h);
    arena_clear(&a);
}

void host_step(struct host *h, struct agent_event *ev)
{
    step(h, ev);
}

// ---- the stream ----
void host_opened(struct host *h, struct conn *c)
{
    h->conn = c;
    step(h, &(struct agent_event){.kind = AGENT_EV_OPEN});
}

void host_closed(struct host *h, const char *why)
{
    h->conn = NULL;
    step(h, &(struct agent_event){.kind = AGENT_EV_CLOSED, .text = why});
}

void host_received(struct host *h, const uint8_t *data, size_t len)
{
    Weft__V1__Down *d = weft__v1__down__unpack(NULL, len, data);
    if (h->w->sim.tracing)
        trace_down(h, d);
    step(h, &(struct agent_event){.kind = AGENT_EV_DOWN, .down = d});
    weft__v1__down__free_unpacked(d, NULL);
}

// ---- the worker's life ----
static void worker_begins(struct host *h)
{
    Weft__V1__Device device, *devices[MAX_DEVICES];
    Weft__V1__Register about;
    weft__v1__device__init(&device);
    device.kind = device.model = frame_text("cpu");
    device.memory = 1LL << 36;
    weft__v1__register__init(&about);
    about.host = h->id;
    about.name = about.share = h->name;
    about.version = frame_text("0.1.0");
    about.address = frame_text("127.0.0.1");
    about.devices = devices;
    about.n_devices = (size_t)h->ndevices;
    about.memory = 1LL << 36;
    for (int i = 0; i < h->ndevices; i++)
        devices[i] = &device; // the coordinator knows them by their order
    struct agent_config c = {.about = &about, .grace_ns = 20 * S};
    struct sim *s = &h->w->sim;
    for (size_t i = 0; i < sizeof c.seed; i += 4) {
        uint32_t word = sim_word(s);
        memcpy(c.seed + i, &word, 4);
    }
    sim_hex(s, h->incarnation);
    c.incarnation = h->incarnation;
    c.cluster = *h->cluster ? h->cluster : NULL;
    h->proc = arena_new(&s->arena, struct proc);
    proc_init(h->proc, s, "%s", h->name);
    h->timer = 0;
    h->polling = h->clearing = false;
    memset(h->slots, 0, sizeof h->slots);
    h->agent = agent_new(&c);
    TRACE(s, h->name, "the worker begins as %.8s", h->incarnation);
    step(h, &(struct agent_event){.kind = AGENT_EV_TICK});
}

void host_boot(struct host *h)
{
    h->off = false;
    if (alive(h) || h->gone)
        return;
    h->booting = true;
    try_lock(h);
}

void host_worker_dies(struct host *h)
{
    if (!alive(h))
        return;
    TRACE(&h->w->sim, h->name, "the worker is gone");
    proc_die(h->proc);
    h->proc = NULL;
    if (h->conn)
        net_agent_leaves(h->conn);
    h->conn = NULL;
    h->clearing = false;
    agent_free(h->agent);
    h->agent = NULL;
    kill_ranks(h); // by their parent's death
}

void host_power_off(struct host *h)
{
    h->off = true;
    h->booting = false;
    host_worker_dies(h);
    while (h->living) {
        struct rank *r = h->living;
        rank_fails(r, -9);
        if (h->living == r)
            break;
    }
}

static void wakes(void *arg, uint64_t tag)
{
    struct host *h = arg;
    (void)tag;
    TRACE(&h->w->sim, h->name, "goes on");
    if (alive(h))
        proc_wake(h->proc);
    for (struct rank *r = h->living; r; r = r->next)
        proc_wake(&r->proc);
}

void host_stop(struct host *h, int64_t ns)
{
    if (!alive(h) || h->proc->stopped)
        return;
    TRACE(&h->w->sim, h->name, "stands still for %.1f s", (double)ns / (double)S);
    proc_stop(h->proc);
    for (struct rank *r = h->living; r; r = r->next)
        proc_stop(&r->proc);
    sim_after(&h->w->sim, ns, wakes, h, 0);
}

void host_term(struct host *h)
{
    if (alive(h) && !h->proc->stopped)
        step(h, &(struct agent_event){.kind = AGENT_EV_TERM});
}
