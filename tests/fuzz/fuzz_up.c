// SPDX-License-Identifier: Apache-2.0
// Fuzzing what workers and clients say to the coordinator's decider. A host is attached and a job
// of two ranks is being started on it; then come records of the input, one after the other:
//
//   kind (1 byte) · length (2 bytes, little endian) · bytes
//   0 Up of the host · 1 Up of nobody known · 2 time passes (length in ms) · 3 SubmitRequest
//   4 ActRequest · 5 the host's stream ends and it attaches again
//
// Whatever comes, rows can be read again, messages are packable, and nothing is read or kept beyond
// its bounds. Ids follow from the seed, so the corpus can name the job.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "coordinator/decide/coord.h"
#include "tests/support/stored_row.h"
#include "tests/support/text_facts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char job[] =
    "name: fuzzed\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\nmesh: {dp: 2}\n"
    "data: {train: {images: i, labels: l}, batch: 4}\n"
    "train: {steps: 10}\ncheckpoint: {dir: .}\n";

struct world {
    struct coord *c;
    int64_t now_ns;
    uint64_t conn;
    char nonce[80];
};

static void take(struct world *w, const struct coord_out *out)
{
    for (int i = 0; i < out->nrows; i++)
        stored_row_free(stored_row_new(&out->rows[i]));
    for (int i = 0; i < out->nactions; i++) {
        const struct coord_action *a = &out->actions[i];
        if (a->kind != COORD_SEND)
            continue;
        uint8_t *bytes = malloc(weft__v1__down__get_packed_size(a->down) + 1);
        weft__v1__down__pack(a->down, bytes);
        free(bytes);
        if (a->down->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            strncpy(w->nonce, a->down->challenge->nonce, sizeof w->nonce - 1);
    }
}

static void step(struct world *w, struct coord_event ev)
{
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    ev.now_ns = w->now_ns;
    ev.wall_ms = 1700000000000 + w->now_ns / 1000000;
    if (add_facts(&a, &ev, NULL))
        coord_step(w->c, &ev, &out);
    take(w, &out);
    arena_clear(&a);
}

static void say(struct world *w, uint64_t conn, const Weft__V1__Up *up)
{
    step(w, (struct coord_event){.kind = COORD_EV_UP, .conn = conn, .up = up});
}

static void attach(struct world *w)
{
    static char host[] = "00000000000000000000000000000001",
                inc[] = "00000000000000000000000000000002";
    char cluster[40];
    strcpy(cluster, coord_cluster(w->c));
    w->conn++;
    Weft__V1__Hello hello;
    Weft__V1__Up up;
    weft__v1__hello__init(&hello);
    weft__v1__up__init(&up);
    hello.host = host;
    hello.incarnation = inc;
    hello.cluster = cluster;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    say(w, w->conn, &up);
    Weft__V1__Register reg;
    Weft__V1__Device d[2], *devices[2] = {&d[0], &d[1]};
    weft__v1__register__init(&reg);
    for (int i = 0; i < 2; i++) {
        weft__v1__device__init(&d[i]);
        d[i].index = i;
        d[i].kind = frame_text("cpu");
    }
    reg.nonce = w->nonce;
    reg.cluster = cluster;
    reg.host = host;
    reg.incarnation = inc;
    reg.name = frame_text("h");
    reg.address = frame_text("127.0.0.1");
    reg.n_devices = 2;
    reg.devices = devices;
    up.body_case = WEFT__V1__UP__BODY_REGISTER;
    up.register_ = &reg;
    say(w, w->conn, &up);
}

static void submit(struct world *w)
{
    Weft__V1__SubmitRequest q;
    weft__v1__submit_request__init(&q);
    q.request_id = frame_text("00000000000000000000000000000003");
    q.resolved = frame_text(job);
    step(w, (struct coord_event){
                .kind = COORD_EV_SUBMIT, .call = 1, .who = "fuzz", .role = "local", .submit = &q});
}

static void record(struct world *w, int kind, const uint8_t *bytes, size_t n)
{
    struct coord_event ev = {.call = 2, .who = "fuzz", .role = "local"};
    Weft__V1__Up *up = kind < 2 ? weft__v1__up__unpack(NULL, n, bytes) : NULL;
    Weft__V1__SubmitRequest *s =
        kind == 3 ? weft__v1__submit_request__unpack(NULL, n, bytes) : NULL;
    Weft__V1__ActRequest *a = kind == 4 ? weft__v1__act_request__unpack(NULL, n, bytes) : NULL;
    if (up)
        say(w, kind == 0 ? w->conn : 1000, up);
    if (kind == 2) {
        w->now_ns += (int64_t)n * 1000000;
        step(w, (struct coord_event){.kind = COORD_EV_TICK});
    }
    ev.submit = s;
    ev.act = a;
    ev.kind = s ? COORD_EV_SUBMIT : COORD_EV_ACT;
    if (s || a)
        step(w, ev);
    if (kind == 5) {
        step(w, (struct coord_event){.kind = COORD_EV_GONE, .conn = w->conn});
        attach(w);
    }
    if (up)
        weft__v1__up__free_unpacked(up, NULL);
    if (s)
        weft__v1__submit_request__free_unpacked(s, NULL);
    if (a)
        weft__v1__act_request__free_unpacked(a, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coord_config config = {.cluster = "0123456789abcdef0123456789abcdef"};
    struct world w = {.now_ns = 1000000000};
    struct arena arena;
    if (size > 65536)
        return 0;
    w.c = coord_new(&config);
    arena_init(&arena);
    struct coord_out out = {.arena = &arena};
    coord_started(w.c, w.now_ns, 1700000000000, &out);
    take(&w, &out);
    attach(&w);
    submit(&w);
    for (size_t at = 0; at + 3 <= size;) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8;
        int kind = data[at] % 6;
        at += 3;
        size_t have = n < size - at ? n : size - at;
        record(&w, kind, data + at, kind == 2 ? n : have);
        at += kind == 2 ? 0 : have;
    }
    arena_clear(&arena);
    arena_init(&arena); // readers see whatever is there now
    (void)coord_jobs(w.c, true, 0, 0, &arena);
    (void)coord_workers(w.c, w.now_ns, &arena);
    (void)coord_why(w.c, "fuzzed", 2000 * CLOCK_S, &arena, NULL);
    (void)coord_checkpoints(w.c, "fuzzed", &arena, NULL);
    arena_clear(&arena);
    coord_free(w.c);
    return 0;
}
