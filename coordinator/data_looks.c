// SPDX-License-Identifier: Apache-2.0
// Questions to workers about the data of submitted jobs; see data_looks.h.
#include "coordinator/data_looks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/model/schema_list.h"
#include "coordinator/job_paths.h"

enum { LOOKS_MAX = 64, ASKED_MAX = 64, NAMED_MAX = 8 };

enum answer { ANSWER_NONE, ANSWER_UNKNOWN, ANSWER_LOOKED };
struct asked {
    uint64_t conn; // 0: gone
    const char *name;
    enum answer answer;
    unsigned lacks; // a bit a path
};
struct look {
    struct list link;
    struct arena arena;
    uint64_t ask;
    int64_t due_ns;
    struct planned job;
    struct data_path paths[DATA_PATHS];
    int npaths;
    struct asked *asked;
    int nasked;
    bool asked_all; // false: more workers could take it than are asked
};

void data_looks_init(struct data_looks *l)
{
    *l = (struct data_looks){0};
    list_init(&l->open);
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
    snprintf(id, sizeof id, "look-%llu", (unsigned long long)k->ask);
    weft__v1__storage__init(&s);
    s.op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    s.job = id;
    s.epoch = k->ask;
    for (int i = 0; i < k->npaths; i++)
        paths[i] = frame_text(k->paths[i].path);
    s.paths = paths;
    s.n_paths = (size_t)k->npaths;
    weft__v1__down__init(&down);
    down.body_case = WEFT__V1__DOWN__BODY_STORAGE;
    down.storage = &s;
    (void)rpc_send(rpc, conn, &down.base, NULL); // a host that is gone ends by host_gone
}

// The job's paths, and the workers that could take it.
static bool find_question(struct look *k, const struct coord *c)
{
    struct job spec;
    struct job_errors errs = {0};
    struct coord_stream *streams;
    const char *text = k->job.submit->resolved;
    if (job_parse(&k->arena, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &spec, &errs))
        return false; // which the decider tells
    k->npaths = job_data_paths(&spec, k->paths);
    int n = coord_streams(c, spec.resources.kind, &k->arena, &streams);
    k->asked_all = n <= ASKED_MAX;
    k->nasked = k->asked_all ? n : ASKED_MAX;
    k->asked = arena_array(&k->arena, struct asked, k->nasked + 1);
    for (int i = 0; i < k->nasked; i++)
        k->asked[i] = (struct asked){.conn = streams[i].conn, .name = streams[i].name};
    return k->npaths && k->nasked;
}

bool data_looks_begin(struct data_looks *l, struct rpc *rpc, const struct coord *c,
                      const struct planned *job, int64_t now_ns)
{
    if (l->n == LOOKS_MAX)
        return false;
    struct look *k = calloc(1, sizeof *k);
    PRE(k != NULL);
    arena_init(&k->arena);
    list_append(&l->open, &k->link);
    l->n++;
    k->job = *job;
    k->ask = ++l->asks;
    k->due_ns = now_ns + LOOK_S * CLOCK_S;
    if (!find_question(k, c)) {
        free_look(l, k);
        return false;
    }
    for (int i = 0; i < k->nasked; i++)
        ask_host(rpc, k, k->asked[i].conn);
    return true;
}

// ---- hearing ----

static struct asked *find_asked(struct look *k, uint64_t conn)
{
    for (int i = 0; i < k->nasked; i++)
        if (k->asked[i].conn == conn)
            return &k->asked[i];
    return NULL;
}

void data_looks_hear(struct data_looks *l, uint64_t conn, const Weft__V1__StorageDone *d)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        struct asked *host = k->ask == d->epoch ? find_asked(k, conn) : NULL;
        if (!host || host->answer != ANSWER_NONE)
            continue;
        host->answer = d->ok ? ANSWER_LOOKED : ANSWER_UNKNOWN;
        for (size_t i = 0; d->ok && i < d->n_missing; i++)
            if (d->missing[i] >= 0 && d->missing[i] < k->npaths)
                host->lacks |= 1u << d->missing[i];
    }
}

void data_looks_host_gone(struct data_looks *l, uint64_t conn)
{
    list_for_each (it, &l->open) {
        struct asked *host = find_asked(list_entry(it, struct look, link), conn);
        if (!host)
            continue;
        host->conn = 0;
        host->answer = host->answer == ANSWER_NONE ? ANSWER_UNKNOWN : host->answer;
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
    for (int i = 0; i < k->nasked; i++)
        n += k->asked[i].lacks >> path & 1;
    return n;
}

static void print_lacking(const struct look *k, int path, struct buf *to)
{
    int said = 0, n = count_lacking(k, path);
    for (int i = 0; i < k->nasked && said < NAMED_MAX; i++)
        if (k->asked[i].lacks >> path & 1)
            buf_printf(to, "%s%.60s", said++ ? ", " : "", k->asked[i].name);
    if (n > said)
        buf_printf(to, " and %d more", n - said);
}

static void draw_conclusion(const struct look *k, struct looked *out)
{
    struct buf text = {0};
    bool absent = false;
    for (int i = 0; i < k->npaths; i++) {
        int lacking = count_lacking(k, i);
        bool everywhere = lacking == k->nasked && k->asked_all;
        if (!lacking || (absent && !everywhere))
            continue;
        if (everywhere && !absent)
            buf_reset(&text); // what is missing here and there does not matter then
        absent = absent || everywhere;
        buf_printf(&text, "%s%s: %.300s is not there on ", text.len ? "; " : "", k->paths[i].key,
                   k->paths[i].path);
        print_lacking(k, i, &text);
    }
    if (absent)
        err_set(&out->job.refused, ERR_INVALID,
                "%s: no worker here that could take the job has it beneath its --data-root",
                buf_str(&text));
    else
        snprintf(out->notice, sizeof out->notice, "%s", buf_str(&text));
    buf_clear(&text);
}

static bool is_over(const struct look *k, int64_t now_ns)
{
    for (int i = 0; i < k->nasked; i++)
        if (k->asked[i].answer == ANSWER_NONE)
            return now_ns >= k->due_ns;
    return true;
}

int64_t data_looks_due(const struct data_looks *l)
{
    return list_empty(&l->open) ? 0 : list_entry(l->open.next, struct look, link)->due_ns;
}

bool data_looks_next(struct data_looks *l, int64_t now_ns, struct looked *out)
{
    list_for_each (it, &l->open) {
        struct look *k = list_entry(it, struct look, link);
        if (!is_over(k, now_ns))
            continue;
        *out = (struct looked){.job = k->job};
        draw_conclusion(k, out);
        free_look(l, k);
        return true;
    }
    return false;
}
