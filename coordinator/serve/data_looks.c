// SPDX-License-Identifier: Apache-2.0
// Questions to workers about the data of submitted jobs; see data_looks.h.
#include "coordinator/serve/data_looks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "coordinator/decide/job_paths.h"
#include "coordinator/serve/job_facts.h"
#include "coordinator/serve/streams.h"

enum { LOOKS_MAX = 64, WHY_MAX = 300 };
enum { PATHS = JOB_DATA_PATHS + 1 }; // the data, then checkpoint.dir

struct look {
    struct list link;
    struct arena arena;
    uint64_t question;
    int64_t due_ns;
    struct planned job;
    const Weft__Plan__JobFacts *facts; // the job's
    int ndata;                         // of its paths; checkpoint.dir is the last
    struct asked_host {
        uint64_t conn;
        const char *name;
        bool waits; // for its answer
    } * hosts;      // [nhosts]
    int nhosts, waiting;
    int missing[PATHS];     // at so many hosts
    const char *why[PATHS]; // of the first of them, with its name
};

void data_looks_init(struct data_looks *l)
{
    *l = (struct data_looks){0};
    list_init(&l->open);
    (void)entropy_bytes(&l->last_question, sizeof l->last_question, NULL);
}

static void free_look(struct data_looks *l, struct look *k)
{
    list_remove(&k->link);
    arena_clear(&k->arena);
    free(k);
    l->n--;
}

void data_looks_clear(struct data_looks *l)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        planned_clear(&k->job);
        free_look(l, k);
    }
}

// ---- asking ----

static void ask_hosts(struct rpc *rpc, const struct look *k)
{
    char id[32];
    V1_NEW(Storage, storage, s);
    V1_NEW(Down, down, down);
    snprintf(id, sizeof id, "look-%llu", (unsigned long long)k->question);
    s.op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    s.job = id; // workers do one act of a name at a time
    s.attempt = k->question;
    char *paths[JOB_DATA_PATHS];
    for (int i = 0; i < k->ndata; i++)
        paths[i] = k->facts->data[i]->path;
    s.paths = paths;
    s.n_paths = (size_t)k->ndata;
    s.dir = k->facts->checkpoint_dir;
    s.literal = k->facts->literal;
    down.body_case = WEFT__V1__DOWN__BODY_STORAGE;
    down.storage = &s;
    for (int i = 0; i < k->nhosts; i++) // data_looks_host_gone() ends what a lost host was asked
        streams_send_down(rpc, k->hosts[i].conn, &down);
}

static bool find_hosts(struct look *k, const struct coord *c, int kind, char *notice, size_t size)
{
    struct coord_stream *streams;
    k->nhosts = k->waiting = coord_streams(c, kind, &k->arena, &streams);
    k->hosts = arena_array(&k->arena, struct asked_host, k->nhosts + 1);
    for (int i = 0; i < k->nhosts; i++)
        k->hosts[i] = (struct asked_host){streams[i].conn, streams[i].name, true};
    if (!k->nhosts)
        snprintf(notice, size,
                 "no worker was asked whether its data is there: none with a %s device is attached",
                 job_device_kind(kind));
    return k->nhosts > 0;
}

bool data_looks_begin(struct data_looks *l, struct rpc *rpc, const struct coord *c,
                      struct checked_job *about, int64_t now_ns)
{
    if (l->n == LOOKS_MAX) {
        snprintf(about->notice, sizeof about->notice,
                 "no worker was asked whether its data is there: they are asked about %d jobs",
                 l->n);
        return false;
    }
    struct look *k = heap_alloc(sizeof *k);
    list_append(&l->open, &k->link);
    l->n++;
    k->job = about->job;
    k->question = ++l->last_question;
    k->due_ns = now_ns + LOOK_S * CLOCK_S;
    k->facts = k->job.facts[0];
    k->ndata = (int)k->facts->n_data;
    PRE(k->ndata <= JOB_DATA_PATHS);
    struct buf no = {0};
    job_paths_check(c, k->facts, &no); // the decider refuses a path that leaves every root
    bool asks = !no.len && k->ndata &&
                find_hosts(k, c, k->facts->kind, about->notice, sizeof about->notice);
    buf_clear(&no);
    if (asks)
        ask_hosts(rpc, k);
    else
        free_look(l, k);
    return asks;
}

// ---- hearing ----

static struct asked_host *find_host(struct look *k, uint64_t conn)
{
    for (int i = 0; i < k->nhosts; i++)
        if (k->hosts[i].conn == conn && k->hosts[i].waits)
            return &k->hosts[i];
    return NULL;
}

// Keeps the reason of the first host that has not a path, as much as fits into a line.
static void note_missing(struct look *k, const struct asked_host *host,
                         const Weft__V1__StorageDone *d)
{
    unsigned said = 0; // the paths, as bits: each counts once
    for (size_t i = 0; i < d->n_missing; i++) {
        int path = d->missing[i];
        if (path < 0 || path > k->ndata || said >> path & 1)
            continue;
        said |= 1u << path;
        if (k->missing[path]++)
            continue;
        const char *words = i < d->n_missing_why ? d->missing_why[i] : "";
        int len = (int)strcspn(words, "\n");
        char *why = arena_printf(&k->arena, "%.60s%s%.*s", host->name, len ? ": " : "",
                                 len < WHY_MAX ? len : WHY_MAX, words);
        plain_mask(why);
        k->why[path] = why;
    }
}

bool data_looks_hear(struct data_looks *l, uint64_t conn, const Weft__V1__StorageDone *d)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        struct asked_host *host = k->question == d->attempt ? find_host(k, conn) : NULL;
        if (!host)
            continue;
        host->waits = false;
        k->waiting--;
        if (d->ok)
            note_missing(k, host, d);
        return true;
    }
    return false;
}

void data_looks_host_gone(struct data_looks *l, uint64_t conn)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        struct asked_host *host = find_host(k, conn);
        if (!host)
            continue;
        host->waits = false;
        k->waiting--;
    }
}

void data_looks_cancel(struct data_looks *l, uint64_t call)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        if (!planned_forget_call(&k->job, call) || k->job.ncalls)
            continue;
        planned_clear(&k->job);
        free_look(l, k);
    }
}

// ---- what comes of it ----

// Refuses the job if no rank could open a file; first the conclusion, since long texts are cut.
static void draw_conclusion(const struct look *k, struct checked_job *out)
{
    struct buf files = {0};
    const char *hint = "";
    for (int i = 0; i <= k->ndata; i++) {
        if (k->missing[i] < k->nhosts)
            continue;
        if (i == k->ndata)
            buf_printf(&files, "; checkpoint.dir: %.300s leaves the --checkpoint-root (%s)",
                       k->facts->checkpoint_dir, k->why[i]);
        else
            buf_printf(&files, "; %s: %.300s cannot be opened (%s)", k->facts->data[i]->key,
                       k->facts->data[i]->path, k->why[i]);
        if (i < k->ndata &&
            k->facts->data[i]->path[0] != '/') // it may have been meant to start there
            hint = " (relative paths of submitted jobs start at the workers' --data-root)";
    }
    if (files.len)
        err_set(&out->job.refused, ERR_INVALID, "%s%s: %s",
                k->missing[k->ndata] == k->nhosts
                    ? "no worker here that could take the job may keep its checkpoints there"
                    : "no worker here that could take the job has this data",
                hint, files.data + strlen("; "));
    buf_clear(&files);
}

int64_t data_looks_due(const struct data_looks *l)
{
    return list_empty(&l->open) ? 0 : list_entry(l->open.next, struct look, link)->due_ns;
}

bool data_looks_next(struct data_looks *l, int64_t now_ns, struct checked_job *out)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        if (k->waiting && now_ns < k->due_ns)
            continue;
        *out = (struct checked_job){.job = k->job};
        draw_conclusion(k, out);
        free_look(l, k);
        return true;
    }
    return false;
}
