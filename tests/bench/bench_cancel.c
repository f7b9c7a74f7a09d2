// SPDX-License-Identifier: Apache-2.0
// What a cancel takes of a coordinator: from the request on an open connection until its answer, which
// comes when the cancel is durable. The jobs are read from standard input, one a line. Beside it, in
// turns: a status of the same job, which changes nothing, and what the disk takes for as many bytes
// as a cancel's transaction writes, written and synced in a file of the coordinator's folder.
//
//   bench_cancel ADDRESS FOLDER <JOBS
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"

enum { TURNS_MAX = 10000, SYNC_BYTES = 4 * 4096, PATIENCE_S = 60 };

static const struct rpc_method act = {.path = "/weft.v1.Weft/Act",
                                      .shape = RPC_UNARY,
                                      .request = &weft__v1__act_request__descriptor,
                                      .reply = &weft__v1__act_reply__descriptor};
static const struct rpc_method status = {.path = "/weft.v1.Weft/Status",
                                         .shape = RPC_UNARY,
                                         .request = &weft__v1__job_request__descriptor,
                                         .reply = &weft__v1__job_status__descriptor};

struct bench {
    struct rpc *rpc;
    struct rpc_channel *channel;
    int fd, n;
    double cancel_ms[TURNS_MAX], status_ms[TURNS_MAX], sync_ms[TURNS_MAX];
};

static void must(int rc, const char *why)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_cancel: %s\n", why);
    exit(1);
}

static double now_ms(void)
{
    return (double)clock_mono_ns() / 1e6;
}

static double ask(struct bench *b, const struct rpc_method *m, const ProtobufCMessage *request)
{
    ProtobufCMessage *reply;
    enum rpc_code code;
    struct err e = {0};
    double at = now_ms();
    must(rpc_ask(b->rpc, b->channel, m, request, PATIENCE_S * CLOCK_S, &reply, &code, &e), e.text);
    double took = now_ms() - at;
    protobuf_c_message_free_unpacked(reply, NULL);
    return took;
}

static double ask_status(struct bench *b, char *job)
{
    Weft__V1__JobRequest q;
    weft__v1__job_request__init(&q);
    q.job = job;
    return ask(b, &status, &q.base);
}

static double ask_cancel(struct bench *b, char *job)
{
    Weft__V1__ActRequest q;
    char id[33];
    weft__v1__act_request__init(&q);
    snprintf(id, sizeof id, "%032x", 0xc0000000u + (unsigned)b->n);
    q.request_id = id;
    q.verb = WEFT__V1__VERB__CANCEL;
    q.target = job;
    return ask(b, &act, &q.base);
}

static double sync_bytes(struct bench *b)
{
    static char bytes[SYNC_BYTES];
    double at = now_ms();
    must(pwrite(b->fd, bytes, sizeof bytes, (off_t)b->n * SYNC_BYTES) != sizeof bytes ||
             fdatasync(b->fd),
         "the folder cannot be written");
    return now_ms() - at;
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void print_times(const char *what, double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, ascending);
    printf("%-38s median %7.3f ms, 9 of 10 below %7.3f, least %7.3f\n", what, ms[n / 2],
           ms[n * 9 / 10], ms[0]);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct rpc_channel_options o = {0};
    char job[80], file[4096];
    struct err e = {0};
    must(argc != 3, "usage: bench_cancel ADDRESS FOLDER <JOBS");
    o.address = argv[1];
    snprintf(file, sizeof file, "%s/bench_cancel", argv[2]);
    must(rpc_open(&b.rpc, &e), e.text);
    must(rpc_dial(b.rpc, &o, &b.channel, &e), e.text);
    b.fd = open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(b.fd < 0, "the folder cannot be written");
    for (; b.n < TURNS_MAX && fgets(job, sizeof job, stdin); b.n++) {
        job[strcspn(job, "\n")] = 0;
        if (b.n == 0)
            ask_status(&b, job); // connects
        b.status_ms[b.n] = ask_status(&b, job);
        b.cancel_ms[b.n] = ask_cancel(&b, job);
        b.sync_ms[b.n] = sync_bytes(&b);
    }
    must(b.n == 0, "no jobs");
    print_times("a cancel over an open connection:", b.cancel_ms, b.n);
    print_times("a status over the same:", b.status_ms, b.n);
    print_times("16 KiB written and synced beside it:", b.sync_ms, b.n);
    unlink(file);
    rpc_hang_up(b.channel);
    rpc_close(b.rpc);
    return 0;
}
