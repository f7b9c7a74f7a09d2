// SPDX-License-Identifier: Apache-2.0
// The table of hosts; see host.h.
#include "coordinator/decide/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/message.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/base/protocol_rule.h"
#include "coordinator/decide/outbox.h"

// How long a fenced incarnation is remembered. A process that comes back later is still stopped, by
// the attempts of its jobs.
enum { FENCED_DAYS = 30 };
// How many fences are kept of each host, the newest ones: only a host that lies has more
// incarnations in so short a time.
enum { FENCED_MAX = 64 };

enum { LACK_KIND = 16, LACK_TEXT = 600 }; // bytes of a worker's words that are kept

// ---- the table ----

struct host *host_find(const struct coord *c, const char *id)
{
    return map_get(&c->hosts_by_id, id);
}

struct host *host_of(const struct coord *c, const char *target, struct err *e)
{
    struct host *found = host_find(c, target);
    int n = 0;
    if (found)
        return found;
    list_for_each (it, &c->hosts) {
        struct host *h = list_entry(it, struct host, link);
        if (strcmp(h->name, target) && (!target[0] || strncmp(h->id, target, strlen(target))))
            continue;
        found = h;
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

struct host *host_add(struct coord *c, const char *id, const char *incarnation)
{
    struct host *h = host_find(c, id);
    V1_NEW(Register, register, unknown);
    if (h)
        return h;
    h = heap_alloc(sizeof *h);
    snprintf(h->id, sizeof h->id, "%s", id);
    snprintf(h->incarnation, sizeof h->incarnation, "%s", incarnation);
    heap_set(&h->name, "");
    h->about = message_copy(&unknown.base);
    h->heard_ns = c->now_ns;
    list_append(&c->hosts, &h->link);
    map_put(&c->hosts_by_id, h->id, h);
    return h;
}

static void free_host(struct coord *c, struct host *h)
{
    map_remove(&c->hosts_by_id, h->id);
    list_remove(&h->link);
    free(h->name);
    weft__v1__register__free_unpacked(h->about, NULL);
    free(h->devices);
    free(h);
}

// ---- fenced incarnations ----

static void make_fence_key(const char *host, const char *incarnation, char out[2 * ID_LEN + 2])
{
    snprintf(out, 2 * ID_LEN + 2, "%.32s/%.32s", host, incarnation);
}

const struct fenced *fence_find(const struct coord *c, const char *host, const char *incarnation)
{
    char key[2 * ID_LEN + 2];
    make_fence_key(host, incarnation, key);
    return map_get(&c->fenced, key);
}

void fence_add(struct coord *c, const struct fenced *from)
{
    char key[2 * ID_LEN + 2];
    make_fence_key(from->host, from->incarnation, key);
    if (map_get(&c->fenced, key))
        return;
    struct fenced *f = malloc(sizeof *f);
    PRE(f != NULL);
    *f = *from;
    list_append(&c->fences, &f->link);
    map_put(&c->fenced, key, f);
}

static void free_fence(struct coord *c, struct fenced *f)
{
    char key[2 * ID_LEN + 2];
    make_fence_key(f->host, f->incarnation, key);
    map_remove(&c->fenced, key);
    list_remove(&f->link);
    free(f);
}

// Returns null where no incarnation of this host is fenced.
static struct fenced *find_oldest_fence(const struct coord *c, const char *host, int *count)
{
    struct fenced *oldest = NULL;
    *count = 0;
    list_for_each (it, &c->fences) {
        struct fenced *f = list_entry(it, struct fenced, link);
        if (strcmp(f->host, host) != 0)
            continue;
        oldest = oldest && oldest->t_ms <= f->t_ms ? oldest : f;
        ++*count;
    }
    return oldest;
}

static void keep_newest_fences(struct coord *c, const char *host, int keep)
{
    struct fenced *f;
    int n;
    while ((f = find_oldest_fence(c, host, &n)) && n > keep) {
        out_erase(c, ROW_FENCED, f);
        free_fence(c, f);
    }
}

void fence_write(struct coord *c, const struct fenced *f)
{
    fence_add(c, f);
    out_row(c, ROW_FENCED, f);
    keep_newest_fences(c, f->host, FENCED_MAX);
}

void hosts_free(struct coord *c)
{
    list_for_each (it, &c->hosts)
        free_host(c, list_entry(it, struct host, link));
    map_clear(&c->hosts_by_id);
    list_for_each (it, &c->fences)
        free_fence(c, list_entry(it, struct fenced, link));
    map_clear(&c->fenced);
}

bool coord_host_gives_way(const struct coord *c, const char *id)
{
    const struct host *h = host_find(c, id);
    return !h || (!h->conn && !h->nattempts && !h->cordoned && !h->draining);
}

void host_forget(struct coord *c, const char *id)
{
    struct host *h = host_find(c, id);
    if (!h || !coord_host_gives_way(c, id))
        return;
    keep_newest_fences(c, id, 0);
    out_erase(c, ROW_HOST, h);
    free_host(c, h);
}

// ---- names ----

static struct host *find_namesake(struct coord *c, const struct host *h, const char *name)
{
    list_for_each (it, &c->hosts) {
        struct host *other = list_entry(it, struct host, link);
        if (other != h && name[0] && !strcmp(other->name, name))
            return other;
    }
    return NULL;
}

static void set_name(struct coord *c, struct host *h, const char *name)
{
    heap_set(&h->name, name);
    host_touch(c, h);
}

static void set_longer_name(struct coord *c, struct host *h, const char *name)
{
    const char *longer = arena_printf(c->out->arena, "%s.%.8s", name, h->id);
    if (find_namesake(c, h, longer))
        longer = arena_printf(c->out->arena, "%s.%s", name, h->id);
    set_name(c, h, longer);
}

void host_call(struct coord *c, struct host *h, const char *name, bool vouched)
{
    struct host *other = find_namesake(c, h, name);
    bool wins = !other || (vouched && !other->vouched);
    h->vouched = vouched;
    if (other && wins)
        set_longer_name(c, other, name);
    if (wins)
        set_name(c, h, name);
    else
        set_longer_name(c, h, name);
}

// ---- how a host is ----

const char *host_name(const struct host *h)
{
    return h->name[0] ? h->name : h->id;
}

static bool has_ranks(const struct host *h)
{
    for (int i = 0; i < h->ndevices; i++)
        if (h->devices[i].holder || h->devices[i].busy)
            return true;
    return false;
}

enum host_state host_state(const struct host *h)
{
    if (h->fenced)
        return HOST_FENCED;
    if (!h->conn)
        return HOST_AWAY;
    if (h->draining || h->leaving)
        return has_ranks(h) ? HOST_DRAINING : HOST_DRAINED;
    return h->cordoned ? HOST_CORDONED : HOST_READY;
}

int host_count_devices(const struct host *h, int kind)
{
    int n = 0;
    for (int i = 0; i < h->ndevices; i++)
        n += h->devices[i].kind == kind;
    return n;
}

bool host_takes_work(const struct host *h)
{
    return h->conn && !h->fenced && !h->leaving && !h->cordoned && !h->draining;
}

bool host_is(const struct host *h, const char *incarnation)
{
    return !h->fenced && (!WEFT_RULE(incarnation) || !strcmp(h->incarnation, incarnation));
}

bool host_silent(const struct coord *c, const struct host *h)
{
    return !h->conn || c->now_ns - h->heard_ns > c->config.heartbeat_ns * 5 / 4;
}

// ---- troubles ----

int64_t host_trouble(struct coord *c, struct host *h)
{
    int64_t ns = AVOID_LEAST_S * CLOCK_S;
    if (c->now_ns - h->avoid_ns > AVOID_MOST_S * CLOCK_S)
        h->troubles = 0; // the last one was long ago
    for (int i = 0; i < h->troubles && ns < AVOID_MOST_S * CLOCK_S; i++)
        ns *= 2;
    h->troubles++;
    h->avoid_ns = c->now_ns + ns;
    return ns;
}

bool host_is_avoided(const struct coord *c, const struct host *h)
{
    return h->avoid_ns > c->now_ns;
}

// ---- what it has ----

// Cuts the worker's sentence to `most` bytes of plain text.
static void cut_plain(char *text, size_t most)
{
    if (strlen(text) > most)
        text[most] = 0;
    plain_mask(text);
}

const char *host_lacks(const struct host *h, int kind)
{
    for (size_t i = 0; i < h->about->n_lacks; i++)
        if (strcmp(h->about->lacks[i]->kind, job_device_kind(kind)) == 0)
            return h->about->lacks[i]->why;
    return NULL;
}

void host_take_about(struct host *h, const Weft__V1__Register *r)
{
    Weft__V1__Register kept = *r;
    kept.n_attempts = 0;
    if (kept.n_lacks > HOST_LACKS_MAX)
        kept.n_lacks = HOST_LACKS_MAX;
    weft__v1__register__free_unpacked(h->about, NULL);
    h->about = message_copy(&kept.base);
    for (size_t i = 0; i < kept.n_lacks; i++) {
        cut_plain(h->about->lacks[i]->kind, LACK_KIND);
        cut_plain(h->about->lacks[i]->why, LACK_TEXT);
    }
    free(h->devices);
    h->ndevices = (int)r->n_devices;
    h->devices = heap_alloc(sizeof *h->devices * (size_t)(h->ndevices + 1));
    for (int i = 0; i < h->ndevices; i++)
        h->devices[i].kind = device_kind_of_word(r->devices[i]->kind);
    for (size_t i = 0; i < r->n_attempts; i++)
        for (size_t k = 0; k < r->attempts[i]->n_ranks; k++) {
            const Weft__V1__RankHere *rank = r->attempts[i]->ranks[k];
            if (!rank->ended && rank->device >= 0 && rank->device < h->ndevices)
                h->devices[rank->device].busy = true;
        }
}

void host_hold(struct host *h, int device, struct job_record *j, int rank)
{
    if (device < 0 || device >= h->ndevices)
        return;
    h->devices[device].holder = j;
    h->devices[device].rank = rank;
}

void host_idle(struct coord *c, struct host *h, int device)
{
    if (device < 0 || device >= h->ndevices || !h->devices[device].busy)
        return;
    h->devices[device].busy = false;
    c->round_due = true;
}

// ---- all of them ----

void hosts_started(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *h = list_entry(it, struct host, link);
        h->fenced = fence_find(c, h->id, h->incarnation) != NULL;
        h->heard_ns = WEFT_RULE(grace) ? c->now_ns : c->now_ns - c->config.lease_ns;
    }
}

void hosts_renew_leases(struct coord *c)
{
    list_for_each (it, &c->hosts)
        list_entry(it, struct host, link)->heard_ns = c->now_ns;
}

static void sweep_fences(struct coord *c)
{
    list_for_each (it, &c->fences) {
        struct fenced *f = list_entry(it, struct fenced, link);
        const struct host *h = host_find(c, f->host);
        bool is_newest = h && !strcmp(h->incarnation, f->incarnation);
        if (is_newest || c->wall_ms - f->t_ms < FENCED_DAYS * 24LL * 3600 * 1000)
            continue;
        out_erase(c, ROW_FENCED, f);
        free_fence(c, f);
    }
}

// Forgets hosts that were fenced long ago, unless somebody has cordoned or drained them.
void hosts_sweep(struct coord *c)
{
    list_for_each (it, &c->hosts) {
        struct host *h = list_entry(it, struct host, link);
        if (!h->fenced || h->cordoned || h->draining || h->nattempts ||
            c->wall_ms - h->seen_ms < c->config.keep_ended_ms)
            continue;
        out_erase(c, ROW_HOST, h);
        free_host(c, h);
    }
    sweep_fences(c);
}

void host_touch(struct coord *c, struct host *h)
{
    h->dirty = c->hosts_dirty = true;
}

void hosts_flush(struct coord *c)
{
    if (!c->hosts_dirty)
        return;
    list_for_each (it, &c->hosts) {
        struct host *h = list_entry(it, struct host, link);
        if (h->dirty)
            out_row(c, ROW_HOST, h);
        h->dirty = false;
    }
    c->hosts_dirty = false;
}
