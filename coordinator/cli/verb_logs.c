// SPDX-License-Identifier: Apache-2.0
// weft logs: what a job's ranks wrote. With -f it follows to the job's end:
//
// Two streams are open then: a watch of the job says where it stands, and the lines come by the
// other. Lines are read again, from the start of what is kept, when the job has a new attempt (other
// hosts have its logs), when the coordinator was away or cut us off because we read too slowly, and at
// the job's end; log_order.h passes over those that were shown. The reading after the job's end is the
// last, and complete. A held job has not ended: its lines are read once, and then only the watch is
// asked now and then, until it is resumed or ends.
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/log_order.h"
#include "coordinator/cli/stored.h"

enum { FEWER = 8192, CUT_SOON_S = 60, GATHER_MS = 500, ASK_AGAIN_MS = 500, ASK_HELD_MS = 2000 };

struct logs_query {
    const struct args *args;
    struct log_order order;
    struct cli_link_stream lines, watch;
    Weft__V1__LogsRequest ask;
    Weft__V1__JobRequest watch_ask;
    bool following, started; // started: the stream of lines was opened
    bool held, whole;        // the job is held; whole: all that it wrote until then was read
    uint64_t attempt;
    int fewer;      // lines of each rank that the reading got which was cut off last
    int64_t cut_ns; // when it was; 0: none
    char job[64];   // its id once that is known, since a name may mean another job later
};

static void show_line(const struct logs_query *g, const struct log_line *l)
{
    struct buf out = {0};
    struct json_out w;
    char mark[24] = "";
    if (g->args->rank < 0)
        snprintf(mark, sizeof mark, "[%d] ", l->rank);
    if (g->args->json) {
        json_print_start(&w, &out, false);
        json_count(&w, "rank", l->rank);
        json_text(&w, "host", l->host);
        json_uint(&w, "attempt", l->attempt);
        json_strn(&w, "text", l->text, l->len);
        json_int(&w, "left_out", l->left_out);
        json_print_end(&w);
    } else {
        if (l->left_out)
            buf_printf(&out, "%s[weft: %lld bytes left out]\n", mark, (long long)l->left_out);
        buf_puts(&out, mark);
        buf_append(&out, l->text, l->len);
        buf_putc(&out, '\n');
    }
    plain_put(stdout, out.data, out.len);
    buf_clear(&out);
}

static void show_lines(struct logs_query *g)
{
    log_order_sort(&g->order);
    for (int i = 0; i < g->order.n; i++)
        show_line(g, &g->order.lines[i]);
    log_order_empty(&g->order);
    fflush(stdout);
}

// Lets the next reading begin at the start of what is kept, if any line was shown.
static void restart_reading(struct logs_query *g, bool following)
{
    if (log_order_again(&g->order))
        g->ask.lines = 0;
    g->following = following;
    g->ask.follow = following && !g->held;
    g->whole = false;
}

// We were cut off because we read too slowly. Where the last lines of all ranks are too many for us
// alone, we would read those of the first ranks for ever: so the next reading gets fewer of each.
static int get_fewer_lines(struct logs_query *g)
{
    int64_t now = clock_mono_ns();
    bool soon = g->cut_ns && now - g->cut_ns < CUT_SOON_S * CLOCK_S;
    g->fewer = soon ? (g->fewer + 1) / 2 : FEWER;
    g->cut_ns = now;
    return g->fewer;
}

// ---- reading lines ----

// Takes lines until none comes for `quiet_ns`, but for GATHER_MS at most: a rank may print without a
// pause, and lines are shown and the watch is heard only between two calls.
static int take_lines(struct logs_query *g, int64_t quiet_ns, enum rpc_code *code,
                      char words[RPC_TEXT_MAX])
{
    ProtobufCMessage *m;
    int64_t left, end = clock_mono_ns() + GATHER_MS * CLOCK_MS;
    while ((left = end - clock_mono_ns()) > 0)
        switch (cli_link_stream_next(&g->lines, &g->ask.base, g->following,
                                     left < quiet_ns ? left : quiet_ns, &m, code, words)) {
        case LINK_NOTHING:
            return -1;
        case LINK_MESSAGE:
            log_order_add(&g->order, (const Weft__V1__LogLines *)(const void *)m);
            cli_link_free(m);
            break;
        case LINK_AWAY: // this is also the answer while no host has any log yet
            if (!g->following)
                return CLIENT_AWAY;
            restart_reading(g, true);
            if (*code == RPC_RESOURCE_EXHAUSTED && g->lines.heard)
                g->ask.lines = get_fewer_lines(g);
            return -1;
        case LINK_END:
            if (!g->following)
                return CLIENT_OK;
            if (g->held) {
                g->whole = true;
                return -1;
            }
            // The hosts that had the logs went away.
            g->lines.again_ns = clock_mono_ns() + ASK_AGAIN_MS * CLOCK_MS;
            restart_reading(g, true);
            return -1;
        case LINK_FAILED:
            if (!g->held || !g->following || *code != RPC_FAILED_PRECONDITION)
                return CLIENT_REFUSED;
            g->whole = true; // it was held before any host had logs of it, or they are away
            return -1;
        }
    return -1;
}

// Returns an exit code, a failure being printed, or -1 to continue. Who follows is shown what there is;
// a reading that ends is shown whole, in order.
static int read_lines(struct logs_query *g, int64_t quiet_ns)
{
    enum rpc_code code = RPC_OK;
    char words[RPC_TEXT_MAX] = "";
    bool following = g->following;
    int rc = take_lines(g, quiet_ns, &code, words);
    if (following || rc >= 0)
        show_lines(g);
    return rc > 0 ? cli_link_explain(g->lines.link, code, words) : rc;
}

static int read_all(struct logs_query *g)
{
    int rc;
    do
        rc = read_lines(g, CLOCK_S);
    while (rc < 0 && !ferror(stdout));
    return rc;
}

// ---- following ----

static void take_status(struct logs_query *g, const Weft__V1__WatchUpdate *u)
{
    const Weft__V1__JobStatus *s = u->status;
    if (!s)
        return;
    snprintf(g->job, sizeof g->job, "%s", s->job);
    g->ask.job = g->watch_ask.job = g->job;
    bool held = s->state == WEFT__V1__JOB_STATE__HELD;
    bool ended = job_ended(s->state) >= 0 && !held;
    if (held && !g->held)
        plain_error("%s is held: what it writes follows here once it is resumed", s->name);
    if (!g->started || s->attempt != g->attempt || ended || held != g->held) {
        g->held = held;
        restart_reading(g, !ended);
        cli_link_stream_open(&g->lines, &g->ask.base);
    }
    g->started = true;
    g->attempt = s->attempt;
}

static int take_follow_event(struct logs_query *g)
{
    ProtobufCMessage *m;
    enum rpc_code code = RPC_OK;
    char words[RPC_TEXT_MAX] = "";
    switch (cli_link_stream_next(&g->watch, &g->watch_ask.base, g->started, 0, &m, &code, words)) {
    case LINK_MESSAGE:
        take_status(g, (const Weft__V1__WatchUpdate *)(const void *)m);
        cli_link_free(m);
        return -1;
    case LINK_AWAY:
        if (code != RPC_RESOURCE_EXHAUSTED) // else it cut us off because we stood still
            plain_error("the coordinator is away; waiting");
        return -1;
    case LINK_FAILED:
        return cli_link_explain(g->watch.link, code, words);
    case LINK_END:
        g->watch.again_ns = clock_mono_ns() + (g->held ? ASK_HELD_MS : ASK_AGAIN_MS) * CLOCK_MS;
        return -1;
    case LINK_NOTHING:
        break;
    }
    if (g->started && !g->whole)
        return read_lines(g, CLOCK_S / 20);
    rpc_wait(g->watch.link->rpc, CLOCK_S / 20);
    return -1;
}

static int follow_job(struct logs_query *g, const struct verb *v)
{
    struct cli_link l = {0};
    int rc = cli_link_open(&l, v, g->args);
    if (rc)
        return rc;
    g->watch = (struct cli_link_stream){.link = &l, .method = LINK_WATCH};
    g->following = true;
    cli_link_stream_open(&g->watch, &g->watch_ask.base);
    do
        rc = take_follow_event(g);
    while (rc < 0 && g->following && !ferror(stdout));
    cli_link_close(&l);
    return rc < 0 && !ferror(stdout) ? read_all(g) : rc;
}

static void add_lines(void *ctx, const Weft__V1__LogLines *lines)
{
    log_order_add(ctx, lines);
}

int verb_logs(const struct verb *v, const struct args *a)
{
    struct logs_query g = {.args = a, .order = {.some = a->lines > 0}};
    struct cli_link l = {0};
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    g.lines = (struct cli_link_stream){.link = &l, .method = LINK_LOGS};
    weft__v1__logs_request__init(&g.ask);
    weft__v1__job_request__init(&g.watch_ask);
    g.ask.job = g.watch_ask.job = arena_strdup(&l.arena, a->pos[0]);
    g.watch_ask.states = true; // a step's numbers would come between us and the job's end
    g.ask.rank = a->rank;
    g.ask.follow = a->follow;
    g.ask.lines = a->lines;
    g.ask.attempt = (uint64_t)a->attempt;
    if (l.stored) {
        enum rpc_code code = RPC_OK; // of a run that is not under way: no more will come
        struct err e = {0};
        if (stored_logs(l.stored, &g.ask, add_lines, &g.order, &code, &e))
            rc = cli_link_explain(&l, code, e.text);
        else
            show_lines(&g);
    } else if (a->follow) {
        rc = follow_job(&g, v);
    } else {
        cli_link_stream_open(&g.lines, &g.ask.base);
        rc = read_all(&g);
    }
    cli_link_close(&l);
    log_order_clear(&g.order);
    return rc < 0 ? CLIENT_FAILED : rc;
}
