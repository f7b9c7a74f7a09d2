// SPDX-License-Identifier: Apache-2.0
// Jobs found again: a coordinator that knows its cluster and has no rows asks every host what lies
// in its folders, and takes up what it does not know.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "coordinator/coord.h"

static const char cluster[] = "0123456789abcdef0123456789abcdef";
static const char lost_job[] = "aaaabbbbccccddddaaaabbbbccccdddd";
static const char resolved[] = "name: lost\nmodel: {inputs: 4, hidden: [4], classes: 2}\n"
                               "mesh: {dp: 2}\ndata: {train: {images: i, labels: l}, batch: 4}\n"
                               "train: {steps: 100}\n";

struct rig {
    struct coord *c;
    int64_t now;
    int asked; // FINDs sent
    char nonce[80];
    Weft__Rows__Meta *meta; // newest row
};

static void take(struct rig *r, const struct coord_out *out)
{
    for (int i = 0; i < out->nwrites; i++)
        if (out->writes[i]->row_case == WEFT__ROWS__WRITE__ROW_META) {
            uint8_t bytes[200];
            size_t n = weft__rows__meta__pack(out->writes[i]->meta, bytes);
            if (r->meta)
                weft__rows__meta__free_unpacked(r->meta, NULL);
            r->meta = weft__rows__meta__unpack(NULL, n, bytes);
        }
    for (int i = 0; i < out->nactions; i++) {
        const Weft__V1__Down *d = out->actions[i].down;
        if (out->actions[i].kind != COORD_SEND)
            continue;
        if (d->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            snprintf(r->nonce, sizeof r->nonce, "%s", d->challenge->nonce);
        if (d->body_case == WEFT__V1__DOWN__BODY_STORAGE)
            r->asked += d->storage->op == WEFT__V1__STORAGE_OP__STORAGE_FIND;
    }
}

static void begin(struct rig *r, const char *known, const Weft__Rows__Meta *meta)
{
    struct coord_config config = {.cluster = known};
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    r->c = coord_new(&config);
    if (meta) {
        Weft__Rows__Write w;
        weft__rows__write__init(&w);
        w.row_case = WEFT__ROWS__WRITE__ROW_META;
        w.meta = (Weft__Rows__Meta *)(void *)(uintptr_t)meta;
        assert_int_equal(coord_load(r->c, &w, NULL), 0);
    }
    coord_started(r->c, r->now, 1700000000000, &out);
    take(r, &out);
    arena_clear(&a);
}

static int set_up(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    r.now = 1000000000;
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    coord_free(r->c);
    if (r->meta)
        weft__rows__meta__free_unpacked(r->meta, NULL);
    return 0;
}

static void say(struct rig *r, const Weft__V1__Up *up)
{
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    struct coord_event ev = {
        .kind = COORD_EV_UP, .conn = 7, .up = up, .now_ns = r->now, .wall_ms = 1700000000000};
    coord_step(r->c, &ev, &out);
    take(r, &out);
    arena_clear(&a);
}

static void attach(struct rig *r, const char *root)
{
    char host[] = "00000000000000000000000000000001", inc[] = "00000000000000000000000000000002";
    char id[33];
    snprintf(id, sizeof id, "%s", coord_cluster(r->c));
    Weft__V1__Up up;
    Weft__V1__Hello hello;
    Weft__V1__Register reg;
    weft__v1__up__init(&up);
    weft__v1__hello__init(&hello);
    weft__v1__register__init(&reg);
    hello.host = reg.host = host;
    hello.incarnation = reg.incarnation = inc;
    hello.cluster = reg.cluster = id;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    say(r, &up);
    reg.nonce = r->nonce;
    reg.name = frame_text("alpha");
    reg.checkpoint_root = frame_text(root);
    up.body_case = WEFT__V1__UP__BODY_REGISTER;
    up.register_ = &reg;
    say(r, &up);
}

static void tell(struct rig *r, const char *job, uint64_t epoch, int64_t step)
{
    Weft__V1__Up up;
    Weft__V1__StorageDone done;
    Weft__V1__FoundJob found, *list[] = {&found};
    Weft__Rows__Checkpoint ckpt, *ckpts[] = {&ckpt};
    weft__v1__up__init(&up);
    weft__v1__storage_done__init(&done);
    weft__v1__found_job__init(&found);
    weft__rows__checkpoint__init(&ckpt);
    ckpt.epoch = 3;
    ckpt.step = step;
    found.job = frame_text(job);
    found.name = frame_text("lost");
    found.resolved = frame_text(resolved);
    found.store = frame_text("/ckpt/lost-aaaabbbb");
    found.epoch = epoch;
    found.n_committed = 1;
    found.committed = ckpts;
    done.op = WEFT__V1__STORAGE_OP__STORAGE_FIND;
    done.ok = true;
    done.n_found = 1;
    done.found = list;
    up.body_case = WEFT__V1__UP__BODY_STORAGE;
    up.storage = &done;
    say(r, &up);
}

static void a_lost_database_finds_its_jobs_again(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 1);
    tell(r, lost_job, 4, 60);
    const Weft__V1__JobStatus *s = coord_status(r->c, "lost", &a, NULL);
    assert_non_null(s);
    assert_string_equal(s->job, lost_job);
    assert_int_equal(s->state, WEFT__ROWS__JOB_STATE__HELD);
    assert_non_null(strstr(s->text, "`weft resume` goes on"));
    assert_int_equal(s->epoch, 4);
    assert_int_equal(s->checkpoint_step, 60);
    assert_int_equal(coord_checkpoints(r->c, "lost", &a, NULL)->n_checkpoints, 1);
    tell(r, lost_job, 4, 60); // another host sees the same folder
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 1);
    arena_clear(&a);
}

static void hosts_that_come_back_later_are_asked_too_even_after_a_restart(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    assert_true(r->meta->lost_ms > 0);
    coord_free(r->c);
    begin(r, cluster, r->meta);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 1);
}

static void nobody_is_asked_by_a_new_cluster_or_one_that_lost_nothing(void **state)
{
    struct rig *r = *state;
    begin(r, NULL, NULL);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 0);
    coord_free(r->c);
    begin(r, cluster, r->meta);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 0);
}

static void what_cannot_be_is_not_believed(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    tell(r, "no id", 4, 60);
    tell(r, lost_job, 2, 60); // its checkpoint is of epoch 3
    tell(r, lost_job, 4, -1);
    tell(r, lost_job, UINT64_MAX, 60);
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 0);
    arena_clear(&a);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_lost_database_finds_its_jobs_again),
        CASE(hosts_that_come_back_later_are_asked_too_even_after_a_restart),
        CASE(nobody_is_asked_by_a_new_cluster_or_one_that_lost_nothing),
        CASE(what_cannot_be_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
