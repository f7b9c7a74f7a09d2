// SPDX-License-Identifier: Apache-2.0
// Streams between workers and the coordinator.
//
// A stream keeps order and loses nothing until it breaks; then each way delivers some of what was
// under way, perhaps much later, and each end hears of it in its own time: so an old stream's words
// still come in behind a new one's. A partition holds one way or both back; it ends streams by
// keepalive when it lasts.
#include "tests/sim/sim_world.h"

#include "common/base/err.h"

static void pump_up(void *arg, uint64_t tag);
static void pump_down(void *arg, uint64_t tag);

static int64_t latency(struct sim *s)
{
    return sim_chance(s, 20) ? sim_between(s, MS, 1500 * MS) : sim_between(s, 50000, 2 * MS);
}

static void schedule(struct conn *c, struct pipe_way *p, int64_t at)
{
    sim_after(&c->w->sim, at - c->w->sim.now, p == &c->up ? pump_up : pump_down, c, 0);
}

// ---- delivery ----
static void tell_coordinator(struct conn *c)
{
    if (c->up.told)
        return;
    c->up.told = true;
    if (c->coordinator == c->w->coordinator.proc && !c->coordinator->dead)
        sim_coordinator_hear(c->w, COORD_EV_GONE, c->id, NULL, 0);
}

static void agent_hears_end(void *arg, uint64_t tag)
{
    struct conn *c = arg;
    (void)tag;
    if (c->host->conn == c)
        host_closed(c->host, "the stream has ended");
}

static void tell_agent(struct conn *c)
{
    if (c->down.told)
        return;
    c->down.told = true;
    proc_after(c->agent, 0, agent_hears_end, c, 0);
}

struct handed {
    struct conn *conn;
    struct packet *packet;
};

static void agent_hears(void *arg, uint64_t tag)
{
    struct handed *x = arg;
    (void)tag;
    if (x->conn->host->conn == x->conn)
        host_received(x->conn->host, x->packet->data, x->packet->len);
}

static struct packet *due(struct pipe_way *p, int64_t now)
{
    struct packet *k = p->first;
    if (!k || k->at > now)
        return NULL;
    p->first = k->next;
    return k;
}

static void pump_up(void *arg, uint64_t tag)
{
    struct conn *c = arg;
    struct packet *k;
    (void)tag;
    if (c->host->blocked_up)
        return; // the partition's end pumps again
    while ((k = due(&c->up, c->w->sim.now)))
        if (c->coordinator == c->w->coordinator.proc && !c->coordinator->dead)
            sim_coordinator_hear(c->w, COORD_EV_UP, c->id, k->data, k->len);
    if (!c->up.first && c->up.fin)
        tell_coordinator(c);
}

static void pump_down(void *arg, uint64_t tag)
{
    struct conn *c = arg;
    struct packet *k;
    (void)tag;
    if (c->host->blocked_down)
        return;
    while ((k = due(&c->down, c->w->sim.now))) {
        struct handed *x = arena_new(&c->w->sim.arena, struct handed);
        *x = (struct handed){c, k};
        proc_after(c->agent, 0, agent_hears, x, 0);
    }
    if (!c->down.first && c->down.fin)
        tell_agent(c);
}

static void push(struct conn *c, struct pipe_way *p, const ProtobufCMessage *m)
{
    struct sim *s = &c->w->sim;
    if (p->cut)
        return;
    struct packet *k = arena_new(&s->arena, struct packet);
    k->len = protobuf_c_message_get_packed_size(m);
    k->data = arena_alloc(&s->arena, k->len + 1);
    protobuf_c_message_pack(m, k->data);
    int64_t at = s->now + latency(s);
    p->latest = at > p->latest ? at : p->latest;
    k->at = p->latest;
    if (p->first)
        p->last->next = k;
    else
        p->first = k;
    p->last = k;
    schedule(c, p, k->at);
}

void net_up(struct conn *c, const Weft__V1__Up *m)
{
    push(c, &c->up, &m->base);
}

static struct conn *find(struct world *w, uint64_t id)
{
    struct conn *c = w->conns;
    while (c && c->id != id)
        c = c->next;
    return c;
}

void net_down(struct world *w, uint64_t conn, const Weft__V1__Down *m)
{
    struct conn *c = find(w, conn);
    if (c)
        push(c, &c->down, &m->base);
}

// ---- ends ----
// Of what is under way some arrives; the end itself is heard `late` ns from now or after that.
static void cut(struct conn *c, struct pipe_way *p, bool loses, int64_t late)
{
    struct sim *s = &c->w->sim;
    if (p->fin)
        return;
    p->cut = p->fin = true;
    if (loses) {
        int n = 0;
        for (struct packet *k = p->first; k; k = k->next)
            n++;
        int keep = sim_below(s, n + 1);
        struct packet **at = &p->first;
        for (; keep > 0; keep--)
            at = &(*at)->next;
        *at = NULL;
    }
    int64_t stretch = sim_chance(s, 300) && !c->w->mix->gentle ? sim_between(s, 0, 4 * S) : 0;
    for (struct packet *k = p->first; k; k = k->next) {
        k->at += stretch;
        p->last = k;
        late = k->at - s->now > late ? k->at - s->now : late;
        schedule(c, p, k->at);
    }
    schedule(c, p, s->now + late);
}

// In a gentle schedule nobody may seem away for a lease.
static int64_t notice(struct world *w)
{
    struct sim *s = &w->sim;
    return sim_chance(s, 200) && !w->mix->gentle ? sim_between(s, S, 8 * S)
                                                 : sim_between(s, MS, 300 * MS);
}

void net_break(struct conn *c)
{
    struct sim *s = &c->w->sim;
    TRACE(s, "net", "stream %d of %s breaks", (int)c->id, c->host->name);
    cut(c, &c->up, true, notice(c->w));
    cut(c, &c->down, true, notice(c->w));
}

void net_agent_leaves(struct conn *c)
{
    struct sim *s = &c->w->sim;
    c->down.cut = c->down.fin = c->down.told = true;
    c->down.first = NULL;
    cut(c, &c->up, sim_chance(s, 300), notice(c->w));
}

void net_coordinator_drops(struct world *w, uint64_t conn)
{
    struct conn *c = find(w, conn);
    if (!c)
        return;
    cut(c, &c->down, false, 0);
    c->up.first = NULL;
    cut(c, &c->up, true, 100000);
}

void net_coordinator_died(struct world *w)
{
    for (struct conn *c = w->conns; c; c = c->next) {
        if (c->up.told && c->down.told)
            continue;
        c->up.first = NULL;
        c->up.cut = c->up.fin = c->up.told = true;
        cut(c, &c->down, true, notice(w));
    }
}

// ---- opening ----
static bool both_ways(const struct host *h)
{
    return !h->blocked_up && !h->blocked_down;
}

static void refused(void *arg, uint64_t tag)
{
    (void)tag;
    host_closed(arg, "cannot connect");
}

static void settle(void *arg, uint64_t tag)
{
    struct host *h = arg;
    struct world *w = h->w;
    (void)tag;
    if (h->conn)
        return;
    if (!w->coordinator.proc || !both_ways(h)) {
        proc_after(h->proc, both_ways(h) ? MS : sim_between(&w->sim, S, 2 * S), refused, h, 0);
        return;
    }
    struct conn *c = arena_new(&w->sim.arena, struct conn);
    *c = (struct conn){.w = w,
                       .id = ++w->next_conn,
                       .host = h,
                       .agent = h->proc,
                       .coordinator = w->coordinator.proc,
                       .next = w->conns};
    w->conns = c;
    host_opened(h, c);
}

void net_open(struct host *h, int64_t wait_ns)
{
    proc_after(h->proc, wait_ns + latency(&h->w->sim), settle, h, 0);
}

// ---- partitions ----
static void heal(void *arg, uint64_t number)
{
    struct host *h = arg;
    if (h->partition != number)
        return;
    TRACE(&h->w->sim, "net", "%s is reachable again", h->name);
    h->blocked_up = h->blocked_down = false;
    for (struct conn *c = h->w->conns; c; c = c->next)
        if (c->host == h) {
            pump_up(c, 0);
            pump_down(c, 0);
        }
}

struct keepalive {
    struct conn *conn;
    uint64_t partition;
};

static void sim_coordinator_gives_up(void *arg, uint64_t tag)
{
    struct keepalive *k = arg;
    (void)tag;
    if (k->conn->host->partition != k->partition || both_ways(k->conn->host))
        return;
    k->conn->up.first = NULL;
    k->conn->up.cut = k->conn->up.fin = true;
    k->conn->down.cut = true;
    tell_coordinator(k->conn);
}

static void agent_gives_up(void *arg, uint64_t tag)
{
    struct keepalive *k = arg;
    (void)tag;
    if (k->conn->host->partition != k->partition || both_ways(k->conn->host))
        return;
    k->conn->down.first = NULL;
    k->conn->down.cut = k->conn->down.fin = true;
    k->conn->up.cut = k->conn->up.fin = true; // what is under way still comes when it heals
    tell_agent(k->conn);
}

void net_partition(struct host *h, bool up, bool down, int64_t ns)
{
    struct sim *s = &h->w->sim;
    TRACE(s, "net", "%s is cut off for %.1f s, %s", h->name, (double)ns / (double)S,
          up && down ? "both ways"
          : up       ? "upwards"
                     : "downwards");
    h->blocked_up |= up;
    h->blocked_down |= down;
    h->partition++;
    for (struct conn *c = h->w->conns; c; c = c->next) {
        if (c->host != h || (c->up.told && c->down.told))
            continue;
        struct keepalive *k = arena_new(&s->arena, struct keepalive);
        *k = (struct keepalive){c, h->partition};
        if (!sim_chance(s, 200))
            sim_after(s, sim_between(s, 3 * S, 9 * S), sim_coordinator_gives_up, k, 0);
        if (!sim_chance(s, 200))
            sim_after(s, sim_between(s, 3 * S, 9 * S), agent_gives_up, k, 0);
    }
    sim_after(s, ns, heal, h, h->partition);
}
