// SPDX-License-Identifier: Apache-2.0
// What is loaded from rows is written back as it was: no column is forgotten in either direction.
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

static const char id[] = "0123456789abcdef0123456789abcdef";
static const char resolved[] =
    "name: it\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: 2}\n"
    "data: {train: {images: x, labels: l}, batch: 24}\ntrain: {steps: 10}\n";

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static void assert_same_columns(const struct row *was, const struct row *is,
                                const char *const *except)
{
    const struct row_table *t = &row_tables[was->kind];
    for (int i = 0; i < t->ncolumns; i++) {
        const struct value *a = &was->values[i], *b = &is->values[i];
        bool same = a->number == b->number && memcmp(&a->real, &b->real, sizeof a->real) == 0 &&
                    a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
        if (!same && !is_one_of(t->columns[i].name, except))
            fail_msg("%s: the column %s is not as it was", t->name, t->columns[i].name);
    }
}

static void test_a_struct_is_the_row_that_it_was_read_from(void **state)
{
    static const char *const none[] = {NULL};
    (void)state;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        struct arena a = {0};
        struct row r = row_filled((enum row_kind)kind, 4 + kind, &a);
        struct stored_row *s = stored_row_new(&r);
        struct row again = row_make(r.kind, s->record, &a);
        assert_same_columns(&r, &again, none);
        stored_row_free(s);
        arena_clear(&a);
    }
}

static void set_text(const struct row *r, const char *column, const char *text)
{
    struct value *v = row_value(r, column);
    v->data = text;
    v->len = strlen(text);
}

// Loads the row and lets the decider write it again.
static const struct row *write_again(struct world *w, const struct row *r, Weft__V1__Verb verb)
{
    char key[200];
    w->rows[w->nrows++] = stored_row_new(r);
    world_restart(w);
    assert_true(world_act(w, verb, id));
    row_print_key(r, key);
    return &w->rows[world_row(w, key)]->row;
}

static struct row held_job(struct arena *a)
{
    struct row r = row_filled(ROW_JOB, 4, a);
    set_text(&r, "id", id);
    set_text(&r, "resolved", resolved);
    set_text(&r, "placement", "");
    row_value(&r, "state")->number = JOB_HELD;
    row_value(&r, "goal")->number = JOB_NONE;
    row_value(&r, "deleting")->number = 0; // else it takes no verb
    return r;
}

static void test_a_job_comes_back_with_all_its_columns(void **state)
{
    static const char *const changed[] = {
        "state",      "goal_why",   "ended_ms",     "events",           "counted_ms",
        "counted_ns", "unsaved_ns", "counted_boot", "spent_unknown_ms", NULL};
    struct world *w = *state;
    struct arena a = {0};
    struct row r = held_job(&a);
    const struct row *is = write_again(w, &r, WEFT__V1__VERB__CANCEL);
    assert_same_columns(&r, is, changed);
    assert_int_equal(row_value(is, "state")->number, JOB_CANCELLED);
    arena_clear(&a);
}

static void test_a_host_comes_back_with_all_its_columns(void **state)
{
    static const char *const changed[] = {"cordoned", NULL};
    struct world *w = *state;
    struct arena a = {0};
    struct row r = row_filled(ROW_HOST, 5, &a);
    set_text(&r, "id", id);
    assert_same_columns(&r, write_again(w, &r, WEFT__V1__VERB__CORDON), changed);
    arena_clear(&a);
}

static void test_a_damaged_row_is_refused_and_named(void **state)
{
    static const struct {
        const char *column, *text; // null: a number
        int64_t number;
    } damage[] = {
        {"id", "0123", 0},   {"state", NULL, JOB_STATES},   {"goal", NULL, -1},
        {"ranks", NULL, 0},  {"ranks", NULL, INT64_MAX},    {"kind", "abacus", 0},
        {"key", "short", 0}, {"placement", "a b 0 0\n", 0}, {"placement", "a b c d", 0},
        {"state", NULL, 0},  {"failures_ms", "1 2 x", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        struct coord_config config = {0};
        struct coord *c = coord_new(&config);
        struct arena a = {0};
        struct err e = {0};
        struct row r = held_job(&a);
        if (damage[i].text)
            set_text(&r, damage[i].column, damage[i].text);
        else
            row_value(&r, damage[i].column)->number = damage[i].number;
        assert_int_equal(coord_load(c, &r, &e), ERR_DATA);
        assert_non_null(strstr(e.text, "is damaged"));
        coord_free(c);
        arena_clear(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_struct_is_the_row_that_it_was_read_from),
        CASE(test_a_job_comes_back_with_all_its_columns),
        CASE(test_a_host_comes_back_with_all_its_columns),
        cmocka_unit_test(test_a_damaged_row_is_refused_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
