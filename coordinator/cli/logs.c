// SPDX-License-Identifier: Apache-2.0
// weft logs: what a job's ranks wrote. With -f it goes on to the job's end; after a coordinator was
// away the logs are read again from the start of what is kept, and lines that are not younger than
// the last one shown of a rank are passed over (a line begins with its time).
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cli/link.h"
#include "coordinator/cli/print.h"

enum { STAMP = 24 }; // "2026-01-02T03:04:05.678Z"

struct seen {
    char stamp[STAMP + 1];
    bool passing; // over what was shown before
};
struct logs {
    const struct args *args;
    struct arena arena;
    struct seen *ranks; // by rank
    int n;
};

static struct seen *seen_of(struct logs *g, int rank)
{
    static struct seen nowhere;
    enum { MOST = 1 << 16 };
    if (rank < 0 || rank >= MOST)
        return &nowhere;
    if (rank >= g->n) {
        int n = rank + 64;
        struct seen *more = arena_array(&g->arena, struct seen, n);
        if (g->n)
            memcpy(more, g->ranks, sizeof *more * (size_t)g->n);
        g->ranks = more;
        g->n = n;
    }
    return &g->ranks[rank];
}

static bool has_stamp(const char *line, size_t len)
{
    return len > STAMP && line[4] == '-' && line[10] == 'T' && line[STAMP - 1] == 'Z';
}

// Whether the line is new, and remembers its time.
static bool is_new(struct seen *s, const char *line, size_t len)
{
    bool stamped = has_stamp(line, len);
    if (s->passing && (!stamped || strncmp(line, s->stamp, STAMP) <= 0))
        return false;
    s->passing = false;
    if (stamped)
        memcpy(s->stamp, line, STAMP);
    return true;
}

static void show(const struct logs *g, const Weft__V1__LogLines *m, const char *line, size_t len)
{
    struct buf out = {0};
    struct json_out w;
    if (g->args->json) {
        json_print_start(&w, &out, false);
        json_count(&w, "rank", m->rank);
        json_text(&w, "host", m->host);
        json_strn(&w, "text", line, len);
        json_print_end(&w);
    } else {
        if (g->args->rank < 0)
            buf_printf(&out, "[%d] ", m->rank);
        for (size_t i = 0; i < len; i++) // what a rank wrote does not steer the reader's terminal
            buf_putc(&out, (unsigned char)line[i] < ' ' && line[i] != '\t' ? '?' : line[i]);
        buf_putc(&out, '\n');
    }
    fwrite(out.data, 1, out.len, stdout);
    buf_clear(&out);
}

static void take(struct logs *g, const Weft__V1__LogLines *m)
{
    struct seen *s = seen_of(g, m->rank);
    const char *at = (const char *)m->text.data, *end = at ? at + m->text.len : at;
    while (at < end) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((nl ? nl : end) - at);
        if (is_new(s, at, len))
            show(g, m, at, len);
        at += len + 1;
    }
    fflush(stdout);
}

static void pass_over(struct logs *g)
{
    for (int i = 0; i < g->n; i++)
        g->ranks[i].passing = g->ranks[i].stamp[0] != 0;
}

static int logs_turn(struct logs *g, struct link_stream *s, Weft__V1__LogsRequest *req)
{
    ProtobufCMessage *m;
    enum rpc_code code = RPC_OK;
    char text[256] = "";
    switch (link_stream_next(s, &req->base, false, CLOCK_S, &m, &code, text)) {
    case LINK_NOTHING:
        return -1;
    case LINK_MESSAGE:
        take(g, (const Weft__V1__LogLines *)(const void *)m);
        link_free(m);
        return -1;
    case LINK_AWAY:
        if (!g->args->follow)
            break;
        fprintf(stderr, "the coordinator is away; waiting\n");
        req->lines = 0;
        pass_over(g);
        return -1;
    case LINK_END:
        return CLIENT_OK;
    case LINK_FAILED:
        break;
    }
    return link_explain(s->link, code, text);
}

int verb_logs(const struct verb *v, const struct args *a)
{
    struct logs g = {.args = a};
    struct link l = {0};
    struct link_stream s = {.link = &l, .method = LINK_LOGS};
    Weft__V1__LogsRequest req;
    weft__v1__logs_request__init(&req);
    int rc = link_open(&l, v, a);
    if (rc)
        return rc;
    req.job = arena_strdup(&l.arena, a->pos[0]);
    req.rank = a->rank;
    req.follow = a->follow;
    req.lines = a->lines;
    link_stream_open(&s, &req.base);
    do
        rc = logs_turn(&g, &s, &req);
    while (rc < 0 && !ferror(stdout));
    link_close(&l);
    arena_clear(&g.arena);
    return rc < 0 ? CLIENT_FAILED : rc;
}
