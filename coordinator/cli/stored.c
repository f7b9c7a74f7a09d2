// SPDX-License-Identifier: Apache-2.0
// What is stored of a `weft run`; see stored.h.
#include "coordinator/cli/stored.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "coordinator/serve/questions.h"
#include "coordinator/serve/streams.h"
#include "worker/rank_logs.h"

struct stored {
    struct db *db;
    struct coord *coord;
    char jobs[4200]; // the folder of the logs
};

static int load_row(void *ctx, const struct row *row, struct err *e)
{
    return coord_load(ctx, row, e);
}

int stored_open(struct stored **out, const char *folder, struct err *e)
{
    struct stored *s = heap_alloc(sizeof *s);
    char boot[CLOCK_BOOT];
    clock_boot(boot);
    s->coord = coord_new(&(struct coord_config){.boot = boot});
    snprintf(s->jobs, sizeof s->jobs, "%s/worker/jobs", folder);
    int rc = db_open(&s->db, folder, DB_READ, e);
    rc = rc ? rc : db_load(s->db, load_row, s->coord, e);
    if (rc) {
        stored_close(s);
        return rc;
    }
    coord_read_only(s->coord, clock_mono_ns(), clock_wall_ms(),
                    "no `weft run` is under way: the same command continues it");
    *out = s;
    return 0;
}

void stored_close(struct stored *s)
{
    if (!s)
        return;
    coord_free(s->coord);
    db_close(s->db);
    free(s);
}

static int refuse(enum rpc_code *code, struct err *e)
{
    *code = streams_error_code(e);
    return ERR_REFUSED;
}

int stored_ask(struct stored *s, const struct rpc_method *m, const ProtobufCMessage *request,
               ProtobufCMessage **reply, enum rpc_code *code, struct err *e)
{
    struct arena a = {0};
    const ProtobufCMessage *answer = answer_question(s->coord, s->db, m, request, &a, e);
    if (answer) {
        size_t len = protobuf_c_message_get_packed_size(answer);
        uint8_t *bytes = arena_alloc(&a, len + 1);
        protobuf_c_message_pack(answer, bytes);
        *reply = protobuf_c_message_unpack(m->reply, NULL, len, bytes);
        PRE(*reply != NULL);
    }
    arena_clear(&a);
    return answer ? 0 : refuse(code, e);
}

// ---- logs ----

struct log_reader {
    char *host;
    void (*say)(void *ctx, const Weft__V1__LogLines *lines);
    void *ctx;
};

static void pass_chunk(void *ctx, const Weft__V1__LogChunk *chunk)
{
    const struct log_reader *r = ctx;
    V1_NEW(LogLines, log_lines, lines);
    lines.rank = chunk->rank;
    lines.host = r->host;
    lines.text = chunk->text;
    lines.attempt = chunk->attempt;
    lines.ends_at = chunk->ends_at;
    if (chunk->text.len)
        r->say(r->ctx, &lines);
}

static bool lags(void *ctx)
{
    (void)ctx;
    return false;
}

int stored_logs(struct stored *s, const Weft__V1__LogsRequest *request,
                void (*say)(void *ctx, const Weft__V1__LogLines *lines), void *ctx,
                enum rpc_code *code, struct err *e)
{
    struct arena a = {0};
    V1_NEW(LogAsk, log_ask, ask);
    const Weft__V1__JobStatus *job = coord_status(s->coord, request->job, &a, e);
    if (job && request->attempt > job->attempt)
        err_set(e, ERR_INVALID, "there is no attempt %llu of the job yet: its newest is %llu",
                (unsigned long long)request->attempt, (unsigned long long)job->attempt);
    if (!job || request->attempt > job->attempt) {
        arena_clear(&a);
        return refuse(code, e);
    }
    const Weft__V1__WorkersReply *hosts = coord_workers(s->coord, clock_mono_ns(), &a);
    struct log_reader r = {hosts->n_workers ? hosts->workers[0]->name : frame_text(""), say, ctx};
    struct logs *logs = logs_new(s->jobs, &(struct logs_ops){&r, pass_chunk, lags});
    ask.job = job->job;
    ask.rank = request->rank;
    ask.lines = request->lines;
    ask.attempt = request->attempt;
    logs_ask(logs, &ask);
    while (logs_waiting(logs))
        logs_resume(logs);
    logs_free(logs);
    arena_clear(&a);
    return 0;
}
