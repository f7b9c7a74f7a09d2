// SPDX-License-Identifier: Apache-2.0
// Questions to workers about the data of submitted jobs; see data_looks.h.
#include "coordinator/data_looks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/plain.h"
#include "common/model/schema_list.h"
#include "coordinator/data_question.h"
#include "coordinator/job_paths.h"
#include "coordinator/streams.h"

enum { LOOKS_MAX = 64, NAMED_MAX = 8, WHY_MAX = 300 };

struct asked_host {
    uint64_t conn;
    const char *name;
    int devices;
    bool waits;     // for its answer
    unsigned lacks; // as in its answer; QUESTION_UNKNOWN while there is none
};
struct look {
    struct list link;
    struct arena arena;
    uint64_t question;
    int64_t due_ns;
    struct planned job;
    int64_t ranks;
    struct data_question asks;
    const char *why[QUESTION_PATHS]; // of the first that lacks it; null: nobody does
    struct asked_host *hosts;        // [nhosts]
    struct asked_host **by_conn;     // the same by their streams' numbers
    int nhosts, waiting;             // waiting: for so many answers
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
        weft__v1__submit_request__free_unpacked(k->job.submit, NULL);
        free_look(l, k);
    }
}

// ---- asking ----

static void ask_host(struct rpc *rpc, const struct look *k, uint64_t conn)
{
    char *paths[DATA_PATHS], id[32];
    Weft__V1__Storage s;
    Weft__V1__Down down;
    snprintf(id, sizeof id, "look-%llu", (unsigned long long)k->question);
    data_question_message(&k->asks, id, k->question, paths, &s);
    weft__v1__down__init(&down);
    down.body_case = WEFT__V1__DOWN__BODY_STORAGE;
    down.storage = &s;
    streams_send_down(rpc, conn, &down); // data_looks_host_gone() ends what a lost host was asked
}

static int compare_conns(const void *a, const void *b)
{
    uint64_t x = (*(struct asked_host *const *)a)->conn, y = (*(struct asked_host *const *)b)->conn;
    return x < y ? -1 : x > y;
}

// The job's paths, and the workers that could take it. `notice`, of so many bytes, is set where there
// are none.
static bool find_question(struct look *k, const struct coord *c, char *notice, size_t size)
{
    struct job job;
    struct job_errors errs = {0};
    struct coord_stream *streams;
    struct buf no = {0};
    const char *text = k->job.submit->resolved;
    if (job_parse(&k->arena, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &job, &errs))
        return false; // which the decider tells
    job_paths_check(c, &job, &no);
    bool leaves_roots = no.len > 0; // which the decider tells too
    buf_clear(&no);
    k->ranks = job.resources.devices;
    data_question_init(&k->asks, &job);
    k->nhosts = k->waiting = coord_streams(c, job.resources.kind, &k->arena, &streams);
    k->hosts = arena_array(&k->arena, struct asked_host, k->nhosts + 1);
    k->by_conn = arena_array(&k->arena, struct asked_host *, k->nhosts + 1);
    for (int i = 0; i < k->nhosts; i++) {
        k->hosts[i] = (struct asked_host){.conn = streams[i].conn,
                                          .name = streams[i].name,
                                          .devices = streams[i].devices,
                                          .waits = true,
                                          .lacks = QUESTION_UNKNOWN};
        k->by_conn[i] = &k->hosts[i];
    }
    qsort(k->by_conn, (size_t)k->nhosts, sizeof *k->by_conn, compare_conns);
    if (!k->nhosts && !leaves_roots)
        snprintf(notice, size,
                 "no worker was asked whether its data is there: none with a %s device is attached",
                 job_device_kind(job.resources.kind));
    return k->asks.ndata && k->nhosts && !leaves_roots;
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
    struct look *k = calloc(1, sizeof *k);
    PRE(k != NULL);
    arena_init(&k->arena);
    list_append(&l->open, &k->link);
    l->n++;
    k->job = about->job;
    k->question = ++l->last_question;
    k->due_ns = now_ns + LOOK_S * CLOCK_S;
    if (!find_question(k, c, about->notice, sizeof about->notice)) {
        free_look(l, k);
        return false;
    }
    for (int i = 0; i < k->nhosts; i++)
        ask_host(rpc, k, k->hosts[i].conn);
    return true;
}

// ---- hearing ----

static struct asked_host *find_host(struct look *k, uint64_t conn)
{
    struct asked_host key = {.conn = conn}, *wanted = &key;
    struct asked_host **at =
        bsearch(&wanted, k->by_conn, (size_t)k->nhosts, sizeof *k->by_conn, compare_conns);
    return at ? *at : NULL;
}

// Keeps the reason of the first host that lacks a path, as much as fits into a line.
static void keep_reason(struct look *k, int path, const char *words)
{
    int len = (int)strcspn(words, "\n");
    if (k->why[path])
        return;
    char *why = arena_printf(&k->arena, "%.*s", len < WHY_MAX ? len : WHY_MAX, words);
    plain_mask(why);
    k->why[path] = why;
}

static void note_missing(struct look *k, struct asked_host *host, const Weft__V1__StorageDone *d)
{
    struct data_answer told;
    data_answer_read(&k->asks, d, &told);
    host->lacks = told.lacks;
    for (int i = 0; i <= k->asks.ndata; i++)
        if (told.why[i])
            keep_reason(k, i, told.why[i]);
}

bool data_looks_hear(struct data_looks *l, uint64_t conn, const Weft__V1__StorageDone *d)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        struct asked_host *host = k->question == d->epoch ? find_host(k, conn) : NULL;
        if (!host || !host->waits)
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
        if (!host || !host->waits)
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
        weft__v1__submit_request__free_unpacked(k->job.submit, NULL);
        free_look(l, k);
    }
}

// ---- what comes of it ----

static int count_lacking(const struct look *k, int path)
{
    int n = 0;
    for (int i = 0; i < k->nhosts; i++)
        n += k->hosts[i].lacks >> path & 1;
    return n;
}

// Counts the devices of all hosts that were asked or, with `able`, of those that may have every
// file.
static int64_t count_devices(const struct look *k, bool able)
{
    int64_t n = 0;
    for (int i = 0; i < k->nhosts; i++)
        n += able && k->hosts[i].lacks & ~(unsigned)QUESTION_UNKNOWN ? 0 : k->hosts[i].devices;
    return n;
}

// Names those with any of these bits; returns how many they are.
static int print_hosts(const struct look *k, unsigned bits, struct buf *to)
{
    int n = 0;
    for (int i = 0; i < k->nhosts; i++)
        if (k->hosts[i].lacks & bits && n++ < NAMED_MAX)
            buf_printf(to, "%s%.60s", n > 1 ? ", " : "", k->hosts[i].name);
    if (n > NAMED_MAX)
        buf_printf(to, " and %d more", n - NAMED_MAX);
    return n;
}

static void print_lack(const struct look *k, int path, struct buf *to)
{
    data_question_print(&k->asks, path, to);
    print_hosts(k, 1u << path, to);
    if (*k->why[path])
        buf_printf(to, " (%s)", k->why[path]);
}

// Prints the files that some host lacks, or only those that all lack; returns how many they are.
static int print_lacks(const struct look *k, bool of_all, struct buf *to)
{
    int n = 0;
    for (int i = 0; i <= k->asks.ndata; i++) {
        int lacking = count_lacking(k, i);
        if (!lacking || (of_all && lacking < k->nhosts))
            continue;
        print_lack(k, i, to);
        n++;
    }
    return n;
}

// A relative path may have been meant to start at the job file.
static const char *hint_where(const struct look *k)
{
    for (int i = 0; i < k->asks.ndata; i++)
        if (k->why[i] && k->asks.paths[i].path[0] != '/')
            return " (relative paths of submitted jobs start at the workers' --data-root)";
    return "";
}

// Why no rank could run, first the conclusion, since long texts are cut.
static void refuse_job(const struct look *k, const char *why, const struct buf *lacks,
                       struct checked_job *out)
{
    err_set(&out->job.refused, ERR_INVALID, "%s%s: %s", why, hint_where(k), lacks->data);
}

static bool has_too_few_devices(const struct look *k, char *why, size_t size)
{
    int64_t able = count_devices(k, true);
    snprintf(why, size,
             "the workers that may have all of its data have %lld device%s, and the job needs %lld",
             (long long)able, able == 1 ? "" : "s", (long long)k->ranks);
    return able < k->ranks && count_devices(k, false) >= k->ranks;
}

static void list_lacking(const struct look *k, struct checked_job *out)
{
    out->lacking = malloc(sizeof *out->lacking * (size_t)(k->nhosts + 1));
    PRE(out->lacking != NULL);
    for (int i = 0; i < k->nhosts; i++)
        if (k->hosts[i].lacks & ~(unsigned)QUESTION_UNKNOWN)
            out->lacking[out->nlacking++] = k->hosts[i].conn;
}

static void draw_conclusion(const struct look *k, struct checked_job *out)
{
    struct buf lacks = {0}, unknown = {0};
    char why[200];
    if (print_lacks(k, true, &lacks)) { // what is missing here and there does not matter then
        bool dir = count_lacking(k, k->asks.ndata) == k->nhosts;
        refuse_job(k,
                   dir ? "no worker here that could take the job may keep its checkpoints there"
                       : "no worker here that could take the job has this data",
                   &lacks, out);
    } else if (print_lacks(k, false, &lacks)) {
        if (has_too_few_devices(k, why, sizeof why))
            refuse_job(k, why, &lacks, out);
        else if (print_hosts(k, QUESTION_UNKNOWN, &unknown))
            buf_printf(&lacks, "; not known of %s", buf_str(&unknown));
        snprintf(out->notice, sizeof out->notice, "%s", out->job.refused.code ? "" : lacks.data);
        list_lacking(k, out);
    }
    buf_clear(&lacks);
    buf_clear(&unknown);
}

static bool is_over(const struct look *k, int64_t now_ns)
{
    return !k->waiting || now_ns >= k->due_ns;
}

int64_t data_looks_due(const struct data_looks *l)
{
    return list_empty(&l->open) ? 0 : list_entry(l->open.next, struct look, link)->due_ns;
}

bool data_looks_next(struct data_looks *l, int64_t now_ns, struct checked_job *out)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        if (!is_over(k, now_ns))
            continue;
        *out = (struct checked_job){.job = k->job};
        draw_conclusion(k, out);
        free_look(l, k);
        return true;
    }
    return false;
}
