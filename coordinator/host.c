// SPDX-License-Identifier: Apache-2.0
// Registration, leases, fencing; see host.h.
#include "coordinator/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/protocol_rule.h"
#include "coordinator/attempt.h"
#include "coordinator/found_jobs.h"
#include "coordinator/frames.h"
#include "coordinator/job_record.h"

enum { DEVICES_MAX = 4096, NAME_TEXT = 320, PATH_TEXT = 4096 };
static const char twin_why[] = "another process of this host registered later";

// So long a fenced incarnation is remembered; a process older than that is stopped by its jobs'
// epochs all the same.
enum { FENCED_DAYS = 30 };

struct fenced {
    struct list link; // in c->fences
    Weft__Rows__Fenced *row;
    bool twin;
};

// ---- tables ----

struct host *host_find(const struct coord *c, const char *id)
{
    return map_get(&c->hosts_by_id, id);
}

struct host *host_of(const struct coord *c, const char *target, struct err *e)
{
    struct host *found = map_get(&c->hosts_by_id, target);
    int n = found != NULL;
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        if (found && !strcmp(found->row->id, target))
            break;
        if (strcmp(host->row->name, target) &&
            (!target[0] || strncmp(host->row->id, target, strlen(target))))
            continue;
        found = host;
        n++;
    }
    if (n == 1)
        return found;
    if (n)
        err_set(e, ERR_INVALID, "'%s' means %d hosts: give an id", target, n);
    else
        err_set(e, ERR_NOTFOUND, "there is no host '%s'", target);
    return NULL;
}

struct host *host_load(struct coord *c, const Weft__Rows__Host *row)
{
    struct host *host = map_get(&c->hosts_by_id, row->id);
    if (host)
        return host;
    host = calloc(1, sizeof *host);
    PRE(host != NULL);
    host->row = msg_heap(&row->base);
    host->heard_ns = c->now_ns;
    list_append(&c->hosts, &host->link);
    map_put(&c->hosts_by_id, row->id, host);
    return host;
}

static void fenced_key(const char *host, const char *incarnation, char out[2 * ID_LEN + 2])
{
    snprintf(out, 2 * ID_LEN + 2, "%.32s/%.32s", host, incarnation);
}

static struct fenced *fenced_find(const struct coord *c, const char *host, const char *incarnation)
{
    char key[2 * ID_LEN + 2];
    fenced_key(host, incarnation, key);
    return map_get(&c->fenced, key);
}

void host_load_fenced(struct coord *c, const Weft__Rows__Fenced *row)
{
    char key[2 * ID_LEN + 2];
    fenced_key(row->host, row->incarnation, key);
    if (map_get(&c->fenced, key))
        return;
    struct fenced *f = calloc(1, sizeof *f);
    PRE(f != NULL);
    f->row = msg_heap(&row->base);
    f->twin = !strcmp(row->why, twin_why);
    list_append(&c->fences, &f->link);
    map_put(&c->fenced, key, f);
}

static void fenced_free(struct coord *c, struct fenced *f)
{
    char key[2 * ID_LEN + 2];
    fenced_key(f->row->host, f->row->incarnation, key);
    map_remove(&c->fenced, key);
    list_remove(&f->link);
    weft__rows__fenced__free_unpacked(f->row, NULL);
    free(f);
}

static void fenced_sweep(struct coord *c)
{
    list_for_each (it, &c->fences) {
        struct fenced *f = list_entry(it, struct fenced, link);
        const struct host *host = host_find(c, f->row->host);
        bool present = host && !strcmp(host->row->incarnation, f->row->incarnation);
        if (present || c->wall_ms - f->row->t_ms < FENCED_DAYS * 24LL * 3600 * 1000)
            continue;
        OUT_ERASE(c, FENCED, f->row);
        fenced_free(c, f);
    }
}

static void free_values(struct map *m)
{
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key)
            free(m->slots[i].value);
    map_clear(m);
}

static void host_free(struct host *host)
{
    weft__rows__host__free_unpacked(host->row, NULL);
    if (host->about)
        weft__v1__register__free_unpacked(host->about, NULL);
    free(host->devices);
    free(host);
}

void hosts_free(struct coord *c)
{
    list_for_each (it, &c->hosts)
        host_free(list_entry(it, struct host, link));
    map_clear(&c->hosts_by_id);
    list_for_each (it, &c->fences)
        fenced_free(c, list_entry(it, struct fenced, link));
    map_clear(&c->fenced);
    free_values(&c->conns);
}

static void conn_key(uint64_t number, char out[24])
{
    snprintf(out, 24, "%" PRIx64, number);
}

static struct conn *conn_find(const struct coord *c, uint64_t number)
{
    char key[24];
    conn_key(number, key);
    return map_get(&c->conns, key);
}

static struct conn *conn_open(struct coord *c, uint64_t number)
{
    struct conn *k = conn_find(c, number);
    char key[24];
    if (k)
        return k;
    k = calloc(1, sizeof *k);
    PRE(k != NULL);
    k->number = number;
    conn_key(number, key);
    map_put(&c->conns, key, k);
    return k;
}

static void conn_forget(struct coord *c, uint64_t number)
{
    char key[24];
    conn_key(number, key);
    free(map_remove(&c->conns, key));
}

// Its host is away from now on, not when the stream's end is heard.
static void drop(struct coord *c, uint64_t number, int code, const char *text)
{
    host_gone(c, number);
    out_drop(c, number, code, text);
}

// ---- views ----

const char *host_name(const struct host *host)
{
    return host->row->name[0] ? host->row->name : host->row->id;
}

static bool has_ranks(const struct host *host)
{
    for (int i = 0; i < host->ndevices; i++)
        if (host->devices[i].holder || host->devices[i].busy)
            return true;
    return false;
}

const char *host_state(const struct host *host)
{
    if (host->fenced)
        return "fenced";
    if (!host->conn)
        return "away";
    if (host->row->draining || host->leaving)
        return has_ranks(host) ? "draining" : "drained";
    return host->row->cordoned ? "cordoned" : "ready";
}

bool host_takes_work(const struct host *host)
{
    return host->conn && !host->fenced && !host->leaving && !host->row->cordoned &&
           !host->row->draining;
}

bool host_is(const struct host *host, const char *incarnation)
{
    return !host->fenced &&
           (!WEFT_RULE(incarnation) || !strcmp(host->row->incarnation, incarnation));
}

bool host_silent(const struct coord *c, const struct host *host)
{
    return !host->conn || c->now_ns - host->heard_ns > c->config.heartbeat_ns * 5 / 4;
}

void host_hold(struct host *host, int device, struct job_record *j, int rank)
{
    if (device < 0 || device >= host->ndevices)
        return;
    host->devices[device].holder = j;
    host->devices[device].rank = rank;
}

void host_idle(struct coord *c, struct host *host, int device)
{
    if (device < 0 || device >= host->ndevices || !host->devices[device].busy)
        return;
    host->devices[device].busy = false;
    c->place = true;
}

// ---- fencing ----

static void send_fenced(struct coord *c, uint64_t conn, const char *why, bool twin)
{
    V1_NEW(FencedOut, fenced_out, f);
    f.why = frame_text(why);
    f.twin = twin;
    DOWN(d, FENCED, fenced, &f);
    out_down(c, conn, &d);
    drop(c, conn, CODE_ABORTED, why);
}

// Its present incarnation is never accepted again; what it ran is over.
static void fence(struct coord *c, struct host *host, const char *why, bool twin)
{
    ROW_NEW(Fenced, fenced, row);
    row.host = host->row->id;
    row.incarnation = host->row->incarnation;
    row.why = frame_text(why);
    row.t_ms = c->wall_ms;
    OUT_ROW(c, FENCED, &row);
    host_load_fenced(c, &row);
    if (host->conn)
        send_fenced(c, host->conn, why, twin);
    host->conn = 0;
    host->fenced = true;
    host->row->seen_ms =
        c->wall_ms - (c->now_ns - host->heard_ns) / CLOCK_MS; // retention begins here
    host->dirty = c->hosts_dirty = true;
    attempts_host_lost(c, host, why);
    for (int i = 0; i < host->ndevices; i++)
        host->devices[i].busy = false; // not for placement: a fenced host takes no work
    c->place = true;
}

// ---- registration ----

static bool is_id(const char *s)
{
    return strspn(s, "0123456789abcdef") == ID_LEN - 1 && !s[ID_LEN - 1];
}

static void on_hello(struct coord *c, uint64_t number, const Weft__V1__Hello *h)
{
    struct conn *k = conn_open(c, number);
    if (!is_id(h->host) || !is_id(h->incarnation) || k->host) {
        drop(c, number, CODE_DENIED, "that is no greeting of a worker");
        return;
    }
    if (h->cluster[0] && strcmp(h->cluster, c->cluster)) {
        drop(c, number, CODE_DENIED,
             "this worker belongs to another cluster: one of the two has lost the file cluster of "
             "its --state, or was given another's");
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

// One line of a length that people can read.
static bool is_line(const char *s, size_t most)
{
    char copy[PATH_TEXT];
    if (strlen(s) >= most || strpbrk(s, "\n\t"))
        return false;
    strcpy(copy, s);
    text_plain(copy);
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
    const char *const names[] = {r->name, r->version, r->rack, r->address, r->share};
    bool ok = is_line(r->data_root, PATH_TEXT) && is_line(r->checkpoint_root, PATH_TEXT);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ok = ok && is_line(names[i], NAME_TEXT);
    for (size_t i = 0; i < r->n_devices; i++)
        ok = ok && device_is_readable(r->devices[i]);
    return ok;
}

// The text that refuses a registration, or null.
static const char *refusal(const struct coord *c, const struct conn *k, const Weft__V1__Register *r)
{
    if (!k || !k->id[0])
        return "a registration without a greeting";
    if (WEFT_RULE(nonce) && (!k->nonce[0] || strcmp(k->nonce, r->nonce)))
        return "the registration does not answer the newest challenge";
    if (strcmp(r->cluster, c->cluster))
        return "this worker belongs to another cluster";
    if (strcmp(r->host, k->id) || strcmp(r->incarnation, k->incarnation))
        return "the registration is not of the one that greeted";
    if (r->n_devices > DEVICES_MAX)
        return "too many devices";
    if (!is_readable(r))
        return "a text of the registration is too long or no plain line";
    return NULL;
}

static void take_devices(struct host *host, const Weft__V1__Register *r)
{
    free(host->devices);
    host->ndevices = (int)r->n_devices;
    host->devices = calloc(r->n_devices + 1, sizeof *host->devices);
    PRE(host->devices != NULL);
    for (size_t i = 0; i < r->n_devices; i++) {
        struct device *d = &host->devices[i];
        snprintf(d->kind, sizeof d->kind, "%s", r->devices[i]->kind);
        snprintf(d->model, sizeof d->model, "%s", r->devices[i]->model);
        d->memory = r->devices[i]->memory;
    }
    for (size_t i = 0; i < r->n_attempts; i++)
        for (size_t k = 0; k < r->attempts[i]->n_ranks; k++) {
            const Weft__V1__RankHere *h = r->attempts[i]->ranks[k];
            if (!h->ended && h->device >= 0 && h->device < host->ndevices)
                host->devices[h->device].busy = true;
        }
}

// A copy without the attempts: those are told once.
static void take_about(struct host *host, const Weft__V1__Register *r)
{
    Weft__V1__Register light = *r;
    light.n_attempts = 0;
    light.attempts = NULL;
    if (host->about)
        weft__v1__register__free_unpacked(host->about, NULL);
    host->about = msg_heap(&light.base);
}

static struct host *host_at(struct coord *c, const Weft__V1__Register *r)
{
    struct host *host = map_get(&c->hosts_by_id, r->host);
    if (host)
        return host;
    ROW_NEW(Host, host, row);
    row.id = r->host;
    row.name = r->name;
    row.incarnation = r->incarnation;
    return host_load(c, &row);
}

static void settle(struct coord *c, struct host *host, struct conn *k, const Weft__V1__Register *r)
{
    if (host->conn && host->conn != k->number)
        drop(c, host->conn, CODE_ABORTED, "the worker has connected again");
    host->conn = k->number;
    host->fenced = false;
    host->leaving = r->draining;
    host->heard_ns = c->now_ns;
    k->host = host;
    k->nonce[0] = 0;
    text_set(&host->row->name, r->name);
    text_set(&host->row->incarnation, r->incarnation);
    host->row->seen_ms = c->wall_ms;
    host->dirty = c->hosts_dirty = true;
    take_about(host, r);
    take_devices(host, r);
    attempts_hold(c, host);
    V1_NEW(Registered, registered, body);
    body.cluster = c->cluster;
    body.lease_ms = c->config.lease_ns / CLOCK_MS;
    body.heartbeat_ms = c->config.heartbeat_ns / CLOCK_MS;
    DOWN(d, REGISTERED, registered, &body);
    out_down(c, k->number, &d);
    c->place = true;
}

static void on_register(struct coord *c, uint64_t number, const Weft__V1__Register *r)
{
    struct conn *k = conn_find(c, number);
    const char *no = refusal(c, k, r);
    if (no) {
        drop(c, number, CODE_DENIED, no);
        return;
    }
    const struct fenced *f =
        WEFT_RULE(incarnation) ? fenced_find(c, r->host, r->incarnation) : NULL;
    if (f) {
        send_fenced(c, number, f->twin ? twin_why : "its lease was lost", f->twin);
        return;
    }
    struct host *host = host_at(c, r);
    bool other = strcmp(host->row->incarnation, r->incarnation) != 0;
    if (other && !host->fenced)
        fence(c, host, twin_why, true);
    settle(c, host, k, r);
    frames_here(c, host, r);
    found_ask(c, host);
    if (host->leaving)
        attempts_drain_host(c, host, "its worker is asked to stop");
}

// ---- the rest ----

static void on_heartbeat(struct coord *c, struct host *host, const Weft__V1__Heartbeat *h)
{
    bool *busy = arena_array(c->out->arena, bool, host->ndevices + 1);
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i]->device >= 0 && h->ranks[i]->device < host->ndevices)
            busy[h->ranks[i]->device] = true;
    for (int i = 0; i < host->ndevices; i++) {
        c->place = c->place || (host->devices[i].busy && !busy[i]);
        host->devices[i].busy = busy[i];
    }
    V1_NEW(HeartbeatAck, heartbeat_ack, body);
    body.seq = h->seq;
    DOWN(d, ACK, ack, &body);
    out_down(c, host->conn, &d);
}

static void on_leaving(struct coord *c, struct host *host)
{
    host->leaving = true;
    attempts_drain_host(c, host, "its worker is asked to stop");
}

static void take_from_host(struct coord *c, struct host *host, const Weft__V1__Up *up)
{
    host->heard_ns = c->now_ns;
    switch (up->body_case) {
    case WEFT__V1__UP__BODY_HEARTBEAT:
        on_heartbeat(c, host, up->heartbeat);
        return;
    case WEFT__V1__UP__BODY_LEAVING:
        on_leaving(c, host);
        return;
    case WEFT__V1__UP__BODY_LOG:
        return; // the owner's
    default:
        frames_up(c, host, up);
    }
}

void host_up(struct coord *c, uint64_t number, const Weft__V1__Up *up)
{
    struct conn *k = conn_find(c, number);
    if (up->body_case == WEFT__V1__UP__BODY_HELLO)
        on_hello(c, number, up->hello);
    else if (up->body_case == WEFT__V1__UP__BODY_REGISTER)
        on_register(c, number, up->register_);
    else if (k && k->host && k->host->conn == number)
        take_from_host(c, k->host, up);
    else
        drop(c, number, CODE_DENIED, "not registered");
}

void host_gone(struct coord *c, uint64_t number)
{
    struct conn *k = conn_find(c, number);
    if (k && k->host && k->host->conn == number) {
        k->host->conn = 0;
        c->place = true;
    }
    conn_forget(c, number);
}

// ---- leases ----

void hosts_tick(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        if (host->fenced || c->now_ns - host->heard_ns <= c->config.lease_ns)
            continue;
        if (!host->row->incarnation[0])
            continue;
        fence(c, host, "not heard for a lease", false);
    }
}

void hosts_started(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        host->fenced = fenced_find(c, host->row->id, host->row->incarnation) != NULL;
        host->heard_ns = WEFT_RULE(grace) ? c->now_ns : c->now_ns - c->config.lease_ns;
    }
}

void hosts_afresh(struct coord *c)
{
    list_for_each (it, &c->hosts)
        list_entry(it, struct host, link)->heard_ns = c->now_ns;
}

static bool is_placed_on(const struct coord *c, const struct host *host)
{
    list_for_each (it, &c->live) {
        const struct attempt *at = list_entry(it, struct attempt, link);
        for (int i = 0; i < at->nhosts; i++)
            if (at->hosts[i].host == host)
                return true;
    }
    return false;
}

// A host that was fenced long ago and about which nobody said anything.
void hosts_sweep(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        if (!host->fenced || host->row->cordoned || host->row->draining || is_placed_on(c, host) ||
            c->wall_ms - host->row->seen_ms < c->config.keep_ended_ms)
            continue;
        OUT_ERASE(c, HOST, host->row);
        list_remove(&host->link);
        map_remove(&c->hosts_by_id, host->row->id);
        host_free(host);
    }
    fenced_sweep(c);
}

void hosts_flush(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        if (host->dirty)
            OUT_ROW(c, HOST, host->row);
        host->dirty = false;
    }
}
