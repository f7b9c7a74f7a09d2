// SPDX-License-Identifier: Apache-2.0
// Greetings, registrations and leases; see attach.h.
#include "coordinator/decide/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/life.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/base/protocol_rule.h"
#include "coordinator/decide/found_jobs.h"
#include "coordinator/decide/frames.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/live_attempts.h"
#include "coordinator/decide/outbox.h"
#include "coordinator/decide/tidy.h"

enum { DEVICES_MOST = JOB_DEVICE_KINDS * HOST_DEVICES_MAX, NAME_TEXT = 320, PATH_TEXT = 4096 };

struct conn { // a worker's stream
    uint64_t number;
    char id[ID_LEN]; // the host of its Hello
    char incarnation[ID_LEN];
    char nonce[ID_LEN]; // open challenge; empty: none
    struct host *host;  // registered
};

// ---- streams ----

static void make_conn_key(uint64_t number, char out[24])
{
    snprintf(out, 24, "%" PRIx64, number);
}

static struct conn *find_conn(const struct coord *c, uint64_t number)
{
    char key[24];
    make_conn_key(number, key);
    return map_get(&c->conns, key);
}

static struct conn *open_conn(struct coord *c, uint64_t number)
{
    struct conn *k = find_conn(c, number);
    char key[24];
    if (k)
        return k;
    k = heap_alloc(sizeof *k);
    k->number = number;
    make_conn_key(number, key);
    map_put(&c->conns, key, k);
    return k;
}

void attach_gone(struct coord *c, uint64_t number)
{
    struct conn *k = find_conn(c, number);
    char key[24];
    if (k && k->host && k->host->conn == number) {
        k->host->conn = 0;
        c->round_due = true;
    }
    make_conn_key(number, key);
    free(map_remove(&c->conns, key));
}

void attach_free(struct coord *c)
{
    for (size_t i = 0; i < c->conns.cap; i++)
        if (c->conns.slots[i].key)
            free(c->conns.slots[i].value);
    map_clear(&c->conns);
}

// The host counts as away at once, not only when the end of the stream arrives.
static void drop_conn(struct coord *c, uint64_t number, int code, const char *text)
{
    attach_gone(c, number);
    out_drop(c, number, code, text);
}

// ---- fencing ----

static void send_fenced(struct coord *c, uint64_t conn, const char *why, enum fence_reason reason)
{
    V1_NEW(FencedOut, fenced_out, f);
    f.why = frame_text(why);
    f.twin = reason == FENCE_TWIN;
    DOWN(d, FENCED, fenced, &f);
    out_down(c, conn, &d);
    drop_conn(c, conn, CODE_ABORTED, why);
}

// The present incarnation is never accepted again, and the attempts that it ran are lost.
static void fence_host(struct coord *c, struct host *host, enum fence_reason reason)
{
    struct fenced f = {.why = reason, .t_ms = c->wall_ms};
    const char *why = fence_word(reason);
    memcpy(f.host, host->id, ID_LEN);
    memcpy(f.incarnation, host->incarnation, ID_LEN);
    fence_write(c, &f);
    if (host->conn)
        send_fenced(c, host->conn, why, reason);
    host->conn = 0;
    host->fenced = true;
    host->seen_ms = c->wall_ms - (c->now_ns - host->heard_ns) / CLOCK_MS; // retention begins here
    host_touch(c, host);
    attempts_host_lost(c, host, why);
    for (int i = 0; i < host->ndevices; i++)
        host->devices[i].busy = false; // not for placement: a fenced host takes no work
    c->round_due = true;
}

void attach_tick(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        bool silent = c->now_ns - host->heard_ns > c->config.lease_ns;
        if (silent && !host->fenced && host->incarnation[0])
            fence_host(c, host, FENCE_LEASE);
    }
}

// ---- registration ----

static void on_hello(struct coord *c, uint64_t number, const Weft__V1__Hello *h)
{
    struct conn *k = open_conn(c, number);
    if (!hex_is(h->host, ID_LEN - 1) || !hex_is(h->incarnation, ID_LEN - 1) || k->host) {
        drop_conn(c, number, CODE_DENIED, "that is no greeting of a worker");
        return;
    }
    if (h->cluster[0] && strcmp(h->cluster, c->cluster)) {
        drop_conn(
            c, number, CODE_DENIED,
            arena_printf(
                c->out->arena,
                "this worker belongs to cluster %.32s and this coordinator to %s. If the "
                "coordinator lost its --state: stop it, move its weft.db* away, write %.32s into "
                "its file cluster and start it again: jobs are found again. If the worker is to "
                "change: remove the file cluster of its --state",
                h->cluster, c->cluster, h->cluster));
        return;
    }
    snprintf(k->id, sizeof k->id, "%s", h->host);
    snprintf(k->incarnation, sizeof k->incarnation, "%s", h->incarnation);
    coord_new_id(c, k->nonce);
    for (size_t i = 0; i < c->conns.cap; i++) { // one open a host, the newest
        struct conn *other = c->conns.slots[i].key ? c->conns.slots[i].value : NULL;
        if (other && other != k && !strcmp(other->id, k->id))
            other->nonce[0] = 0;
    }
    V1_NEW(Challenge, challenge, body);
    body.cluster = c->cluster;
    body.nonce = k->nonce;
    DOWN(d, CHALLENGE, challenge, &body);
    out_down(c, number, &d);
}

// Is it one line without control characters, of a length that people can read?
static bool is_line(const char *s, size_t most)
{
    char copy[PATH_TEXT];
    if (strlen(s) >= most || strpbrk(s, "\n\t"))
        return false;
    strcpy(copy, s);
    plain_mask(copy);
    return !strcmp(copy, s);
}

static bool device_is_readable(const Weft__V1__Device *d)
{
    const char *const words[] = {d->kind, d->model, d->isa, d->driver, d->pci, d->uuid, d->peers};
    bool ok = true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ok = ok && is_line(words[i], NAME_TEXT);
    return ok;
}

static bool is_readable(const Weft__V1__Register *r)
{
    const char *const names[] = {r->name,    r->version, r->rack,
                                 r->address, r->share,   r->address_doubt};
    bool ok = is_line(r->data_root, PATH_TEXT) && is_line(r->checkpoint_root, PATH_TEXT);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ok = ok && is_line(names[i], NAME_TEXT);
    for (size_t i = 0; i < r->n_devices; i++)
        ok = ok && device_is_readable(r->devices[i]);
    return ok;
}

// Returns why the registration is refused, or null.
static const char *check_registration(const struct coord *c, const struct conn *k,
                                      const Weft__V1__Register *r)
{
    if (!k || !k->id[0])
        return "a registration without a greeting";
    if (WEFT_RULE(nonce) && (!k->nonce[0] || strcmp(k->nonce, r->nonce)))
        return "the registration does not answer the newest challenge";
    if (strcmp(r->cluster, c->cluster))
        return "this worker belongs to another cluster";
    if (strcmp(r->host, k->id) || strcmp(r->incarnation, k->incarnation))
        return "the registration is not of the one that greeted";
    if (r->n_devices > DEVICES_MOST)
        return "too many devices";
    if (!is_readable(r))
        return "a text of the registration is too long or no plain line";
    return NULL;
}

static void welcome_host(struct coord *c, struct host *host, struct conn *k,
                         const Weft__V1__Register *r)
{
    if (host->conn && host->conn != k->number)
        drop_conn(c, host->conn, CODE_ABORTED, "the worker has connected again");
    host->conn = k->number;
    host->fenced = false;
    host->leaving = r->draining;
    host->heard_ns = c->now_ns;
    k->host = host;
    k->nonce[0] = 0;
    memcpy(host->incarnation, k->incarnation, ID_LEN);
    host->seen_ms = c->wall_ms;
    host_touch(c, host);
    host_take_about(host, r);
    attempts_hold(c, host);
    V1_NEW(Registered, registered, body);
    body.cluster = c->cluster;
    body.lease_ms = c->config.lease_ns / CLOCK_MS;
    body.heartbeat_ms = c->config.heartbeat_ns / CLOCK_MS;
    DOWN(d, REGISTERED, registered, &body);
    out_down(c, k->number, &d);
    c->round_due = true;
}

static void on_register(struct coord *c, uint64_t number, const char *who,
                        const Weft__V1__Register *r)
{
    struct conn *k = find_conn(c, number);
    const char *no = check_registration(c, k, r);
    if (no) {
        drop_conn(c, number, CODE_DENIED, no);
        return;
    }
    const struct fenced *f = WEFT_RULE(incarnation) ? fence_find(c, r->host, r->incarnation) : NULL;
    if (f) {
        send_fenced(c, number, f->why == FENCE_TWIN ? fence_word(f->why) : "its lease was lost",
                    f->why);
        return;
    }
    struct host *host = host_add(c, r->host, r->incarnation);
    bool other = strcmp(host->incarnation, r->incarnation) != 0;
    if (other && !host->fenced)
        fence_host(c, host, FENCE_TWIN);
    host_call(c, host, r->name, who && !strcmp(who, r->name));
    welcome_host(c, host, k, r);
    frames_here(c, host, r);
    found_ask(c, host);
    tidies_ask(c);
    if (host->leaving)
        attempts_drain_host(c, host, "its worker is asked to stop");
}

// ---- what a registered worker says ----

// A worker may say anything.
static struct host_room make_room(int64_t free, int64_t size)
{
    bool is_one = size > 0 && free >= 0 && free <= size;
    return is_one ? (struct host_room){free, size} : (struct host_room){0};
}

static void on_heartbeat(struct coord *c, struct host *host, const Weft__V1__Heartbeat *h)
{
    bool *busy = arena_array(c->out->arena, bool, host->ndevices + 1);
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i]->device >= 0 && h->ranks[i]->device < host->ndevices)
            busy[h->ranks[i]->device] = true;
    for (int i = 0; i < host->ndevices; i++) {
        c->round_due = c->round_due || (host->devices[i].busy && !busy[i]);
        host->devices[i].busy = busy[i];
    }
    host->room[HOST_ROOM_STATE] = make_room(h->state_free, h->state_size);
    host->room[HOST_ROOM_CHECKPOINTS] = make_room(h->checkpoints_free, h->checkpoints_size);
    V1_NEW(HeartbeatAck, heartbeat_ack, body);
    body.seq = h->seq;
    DOWN(d, ACK, ack, &body);
    out_down(c, host->conn, &d);
}

static void take_from_host(struct coord *c, struct host *host, const Weft__V1__Up *up)
{
    host->heard_ns = c->now_ns;
    switch (up->body_case) {
    case WEFT__V1__UP__BODY_HEARTBEAT:
        on_heartbeat(c, host, up->heartbeat);
        return;
    case WEFT__V1__UP__BODY_LEAVING:
        host->leaving = true;
        attempts_drain_host(c, host, "its worker is asked to stop");
        return;
    case WEFT__V1__UP__BODY_LOG:
        return; // the owner's
    default:
        frames_up(c, host, up);
    }
}

void attach_found(struct coord *c, const struct coord_event *ev)
{
    const struct conn *k = find_conn(c, ev->conn);
    if (k && k->host && k->host->conn == ev->conn)
        found_take(c, k->host, ev->up->storage, ev->facts, ev->from, ev->to);
}

bool coord_awaits_found(const struct coord *c, uint64_t conn)
{
    const struct conn *k = find_conn(c, conn);
    return k && k->host && k->host->conn == conn && k->host->find == conn;
}

void attach_up(struct coord *c, const struct coord_event *ev)
{
    const Weft__V1__Up *up = ev->up;
    struct conn *k = find_conn(c, ev->conn);
    if (up->body_case == WEFT__V1__UP__BODY_HELLO)
        on_hello(c, ev->conn, up->hello);
    else if (up->body_case == WEFT__V1__UP__BODY_REGISTER)
        on_register(c, ev->conn, ev->who, up->register_);
    else if (k && k->host && k->host->conn == ev->conn)
        take_from_host(c, k->host, up);
    else
        drop_conn(c, ev->conn, CODE_DENIED, "not registered");
}
