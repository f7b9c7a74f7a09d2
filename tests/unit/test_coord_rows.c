// SPDX-License-Identifier: Apache-2.0
// What is loaded from rows is written back as it was: no column is forgotten in either direction.
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"

static const char id[] = "0123456789abcdef0123456789abcdef";
static const char resolved[] =
    "name: it\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: 2}\n"
    "data: {train: {images: x, labels: l}, batch: 24}\ntrain: {steps: 10}\n";

// Every scalar column gets a value of its own.
static void fill_scalars(ProtobufCMessage *m, struct arena *a)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        void *at = (char *)m + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            continue;
        if (f->type == PROTOBUF_C_TYPE_STRING)
            *(char **)at = arena_printf(a, "%s is a text", f->name);
        else if (f->type == PROTOBUF_C_TYPE_BOOL)
            *(protobuf_c_boolean *)at = true;
        else if (f->type == PROTOBUF_C_TYPE_INT64 || f->type == PROTOBUF_C_TYPE_UINT64)
            *(int64_t *)at = 1000 + i;
        else if (f->type == PROTOBUF_C_TYPE_INT32)
            *(int32_t *)at = 1000 + (int)i;
        else if (f->type == PROTOBUF_C_TYPE_DOUBLE)
            *(double *)at = 0.1 * i;
    }
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static void assert_same_columns(const ProtobufCMessage *was, const ProtobufCMessage *is,
                                const char *const *except)
{
    for (unsigned i = 0; i < was->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &was->descriptor->fields[i];
        const void *a = (const char *)was + f->offset, *b = (const char *)is + f->offset;
        bool same = true;
        if (f->label == PROTOBUF_C_LABEL_REPEATED || is_one_of(f->name, except))
            continue;
        if (f->type == PROTOBUF_C_TYPE_STRING)
            same = strcmp(*(char *const *)a, *(char *const *)b) == 0;
        else if (f->type == PROTOBUF_C_TYPE_DOUBLE)
            same = memcmp(a, b, sizeof(double)) == 0;
        else if (f->type == PROTOBUF_C_TYPE_INT64 || f->type == PROTOBUF_C_TYPE_UINT64)
            same = *(const int64_t *)a == *(const int64_t *)b;
        else if (f->type != PROTOBUF_C_TYPE_BYTES)
            same = *(const int32_t *)a == *(const int32_t *)b;
        if (!same)
            fail_msg("the column %s is not as it was", f->name);
    }
}

static void test_a_job_comes_back_with_all_its_columns(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    Weft__Rows__Job job;
    weft__rows__job__init(&job);
    fill_scalars(&job.base, &a);
    unsigned char key[32] = {1, 2, 3};
    int64_t failures[] = {w->wall - 1, w->wall};
    Weft__V1__Spent spent, *spents[] = {&spent};
    weft__v1__spent__init(&spent);
    spent.what = frame_text("checkpoint");
    spent.ms = 77;
    job.id = frame_text(id);
    job.run_id = job.attempt_id = job.id;
    job.job_hash = frame_text(id);
    job.resolved = frame_text(resolved);
    job.state = STATE(HELD);
    job.goal = STATE(JOB_NONE);
    job.ranks = 2;
    job.kind = frame_text("cpu");
    job.key = (ProtobufCBinaryData){sizeof key, key};
    job.failures_ms = failures;
    job.n_failures_ms = 2;
    job.budget_used = 2;
    job.spent = spents;
    job.n_spent = 1;
    job.exit_code = 1;
    Weft__Rows__Write row = WEFT__ROWS__WRITE__INIT;
    row.row_case = WEFT__ROWS__WRITE__ROW_JOB;
    row.job = &job;
    world_add_row(w, &row);
    world_restart(w);
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, id));
    const Weft__Rows__Job *is = world_job(w, id);
    static const char *const changed[] = {"state",      "old_state", "goal_why", "ended_ms",
                                          "events",     "spent_ms",  "spent_ns", "spent_boot",
                                          "unsaved_ns", NULL};
    assert_same_columns(&job.base, &is->base, changed);
    assert_int_equal(is->state, STATE(CANCELLED));
    assert_int_equal(is->key.len, sizeof key);
    assert_memory_equal(is->key.data, key, sizeof key);
    assert_int_equal(is->n_failures_ms, 2);
    assert_memory_equal(is->failures_ms, failures, sizeof failures);
    bool found = false;
    for (size_t i = 0; i < is->n_spent; i++)
        found = found || (!strcmp(is->spent[i]->what, "checkpoint") && is->spent[i]->ms == 77);
    assert_true(found);
    arena_clear(&a);
}

static void test_a_host_comes_back_with_all_its_columns(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    Weft__Rows__Host host;
    weft__rows__host__init(&host);
    fill_scalars(&host.base, &a);
    host.id = frame_text(id);
    host.incarnation = frame_text(id);
    Weft__Rows__Write row = WEFT__ROWS__WRITE__INIT;
    row.row_case = WEFT__ROWS__WRITE__ROW_HOST;
    row.host = &host;
    world_add_row(w, &row);
    world_restart(w);
    assert_true(world_act(w, WEFT__V1__VERB__CORDON, id)); // it is already
    char key[60];
    snprintf(key, sizeof key, "host %s", id);
    static const char *const none[] = {NULL};
    assert_same_columns(&host.base, &w->rows[world_row(w, key)]->host->base, none);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_a_job_comes_back_with_all_its_columns),
        STORY(test_a_host_comes_back_with_all_its_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
