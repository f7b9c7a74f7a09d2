// SPDX-License-Identifier: Apache-2.0
// Questions to workers about metrics; see row_reads.h.
#include "coordinator/serve/row_reads.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/attempt/frame.h"
#include "common/attempt/message.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/heap.h"
#include "coordinator/serve/streams.h"

enum { READS_MAX = 64, HOSTS = 3 };
#define HOST_NS (5 * CLOCK_S) // for which one host is waited for

struct row_read {
    struct list link;
    uint64_t call, question;
    Weft__V1__Storage *ask;
    uint64_t conns[HOSTS]; // who may be asked
    int nconns, at;        // at: who was asked last
    int64_t due_ns;
    char why[300]; // of the newest host that failed
};

void row_reads_init(struct row_reads *r)
{
    *r = (struct row_reads){0};
    list_init(&r->open);
    (void)entropy_bytes(&r->last_question, sizeof r->last_question, NULL);
}

static void free_read(struct row_reads *r, struct row_read *k)
{
    list_remove(&k->link);
    weft__v1__storage__free_unpacked(k->ask, NULL);
    free(k);
    r->n--;
}

void row_reads_clear(struct row_reads *r)
{
    list_for_each (it, &r->open)
        free_read(r, list_entry(it, struct row_read, link));
}

static void ask_host(struct rpc *rpc, struct row_read *k)
{
    V1_NEW(Down, down, down);
    down.body_case = WEFT__V1__DOWN__BODY_STORAGE;
    down.storage = k->ask;
    k->due_ns = clock_mono_ns() + HOST_NS;
    streams_send_down(rpc, k->conns[k->at], &down);
}

// After the last host the client hears why it gets nothing.
static void ask_next(struct row_reads *r, struct rpc *rpc, struct row_read *k)
{
    if (++k->at < k->nconns) {
        ask_host(rpc, k);
        return;
    }
    rpc_finish(rpc, k->call, RPC_FAILED_PRECONDITION,
               k->why[0] ? k->why : "the hosts that were asked for its metrics do not answer");
    free_read(r, k);
}

void row_reads_begin(struct row_reads *r, struct rpc *rpc, const struct coord *c, uint64_t call,
                     const Weft__V1__RowsRequest *q)
{
    struct err e = {0};
    V1_NEW(Storage, storage, s);
    uint64_t conns[HOSTS];
    char name[32];
    if (r->n == READS_MAX) {
        rpc_finish(rpc, call, RPC_RESOURCE_EXHAUSTED, "too many clients read metrics");
        return;
    }
    int n = coord_row_question(c, q->job, &s, conns, HOSTS, &e);
    if (n <= 0) {
        rpc_finish(rpc, call, n < 0 ? streams_error_code(&e) : RPC_FAILED_PRECONDITION,
                   n < 0 ? e.text : "no host is here that could read its metrics");
        return;
    }
    struct row_read *k = heap_alloc(sizeof *k);
    *k = (struct row_read){.call = call, .question = ++r->last_question, .nconns = n};
    for (int i = 0; i < n; i++)
        k->conns[i] = conns[i];
    snprintf(name, sizeof name, "rows-%llu", (unsigned long long)k->question);
    s.job = name; // workers do one act of a name at a time
    s.attempt = k->question;
    s.rows_from = q->from < 0 ? 0 : q->from;
    s.resolved = frame_text(""); // of no use to who makes no folder
    k->ask = message_copy(&s.base);
    list_append(&r->open, &k->link);
    r->n++;
    ask_host(rpc, k);
}

bool row_reads_hear(struct row_reads *r, struct rpc *rpc, uint64_t conn,
                    const Weft__V1__StorageDone *d)
{
    list_for_each (it, &r->open) {
        struct row_read *k = list_entry(it, struct row_read, link);
        if (k->question != d->attempt || k->conns[k->at] != conn)
            continue;
        if (!d->ok) {
            snprintf(k->why, sizeof k->why, "%s", d->why);
            ask_next(r, rpc, k);
            return true;
        }
        V1_NEW(RowsReply, rows_reply, reply);
        reply.job = k->ask->rows_of;
        reply.text = d->rows;
        rpc_reply(rpc, k->call, &reply.base);
        free_read(r, k);
        return true;
    }
    return false;
}

void row_reads_host_gone(struct row_reads *r, struct rpc *rpc, uint64_t conn)
{
    list_for_each (it, &r->open) {
        struct row_read *k = list_entry(it, struct row_read, link);
        if (k->conns[k->at] == conn)
            ask_next(r, rpc, k);
    }
}

void row_reads_cancel(struct row_reads *r, uint64_t call)
{
    list_for_each (it, &r->open)
        if (list_entry(it, struct row_read, link)->call == call)
            free_read(r, list_entry(it, struct row_read, link));
}

int64_t row_reads_due(const struct row_reads *r)
{
    int64_t due = 0;
    for (struct list *it = r->open.next; it != &r->open; it = it->next) {
        int64_t its = list_entry(it, struct row_read, link)->due_ns;
        due = !due || its < due ? its : due;
    }
    return due;
}

void row_reads_tick(struct row_reads *r, struct rpc *rpc, int64_t now_ns)
{
    list_for_each (it, &r->open) {
        struct row_read *k = list_entry(it, struct row_read, link);
        if (now_ns >= k->due_ns)
            ask_next(r, rpc, k);
    }
}
