// SPDX-License-Identifier: Apache-2.0
// What all starts of a job did: what is kept can be read again, however long its texts are.
#include <string.h>
#include <sys/stat.h>

#include "common/base/heap.h"
#include "coordinator/cli/run_history.h"
#include "tests/unit/scratch.h"
#include "tests/unit/unit.h"

enum { START_EVENTS = 1500 };

// A start with so many events of so long texts, and a second of running.
struct start {
    Weft__V1__WhyReply reply;
    Weft__V1__Event event[START_EVENTS], *events[START_EVENTS];
    Weft__V1__Spent running, *spent[1];
    char *text;
};

static void fill(struct start *s, int first, size_t len)
{
    static char kind[] = "ended", what[] = "running";
    s->text = heap_alloc(len + 1);
    memset(s->text, 'x', len);
    s->text[len] = 0;
    weft__v1__why_reply__init(&s->reply);
    for (int i = 0; i < START_EVENTS; i++) {
        s->events[i] = &s->event[i];
        weft__v1__event__init(s->events[i]);
        s->event[i].step = first + i;
        s->event[i].kind = kind;
        s->event[i].text = s->text;
    }
    s->reply.events = s->events;
    s->reply.n_events = START_EVENTS;
    s->spent[0] = &s->running;
    weft__v1__spent__init(&s->running);
    s->running.what = what;
    s->running.ms = 1000;
    s->reply.spent = s->spent;
    s->reply.n_spent = 1;
}

// Writes two starts, and returns what is read then.
static Weft__V1__WhyReply *keep_two(size_t len)
{
    static struct start one, two;
    struct scratch place;
    struct err e = {0};
    Weft__V1__WhyReply *got = NULL;
    scratch_make(&place);
    assert_int_equal(mkdir(scratch_path(&place, ".weft"), 0700), 0);
    fill(&one, 0, len);
    fill(&two, START_EVENTS, len);
    assert_int_equal(run_history_write(place.dir, "job", &one.reply, &two.reply, &e), 0);
    assert_int_equal(run_history_read(place.dir, "job", &got, &e), 0);
    free(one.text);
    free(two.text);
    scratch_remove(&place);
    assert_int_equal(got->events[got->n_events - 1]->step, 2 * START_EVENTS - 1);
    assert_true(got->trimmed);
    assert_int_equal(got->n_spent, 1);
    assert_int_equal(got->spent[0]->ms, 2000);
    return got;
}

static void the_newest_events_of_all_starts_are_kept(void **state)
{
    (void)state;
    Weft__V1__WhyReply *got = keep_two(10);
    assert_int_equal(got->n_events, HISTORY_EVENTS);
    weft__v1__why_reply__free_unpacked(got, NULL);
}

static void long_texts_leave_room_for_fewer(void **state)
{
    (void)state;
    Weft__V1__WhyReply *got = keep_two(64000);
    assert_true(got->n_events > 100);
    assert_true(got->n_events < 300);
    weft__v1__why_reply__free_unpacked(got, NULL);
}

static int read_packed(const Weft__V1__WhyReply *r)
{
    struct buf bytes = {0};
    Weft__V1__WhyReply *got;
    size_t n = weft__v1__why_reply__get_packed_size(r);
    buf_reserve(&bytes, n);
    weft__v1__why_reply__pack(r, (uint8_t *)bytes.data);
    int rc = run_history_parse(bytes.data, n, &got, NULL);
    if (!rc)
        weft__v1__why_reply__free_unpacked(got, NULL);
    buf_clear(&bytes);
    return rc;
}

// Numbers that have no sum, and more kinds of time than there are.
static void what_no_start_can_have_done_is_refused(void **state)
{
    (void)state;
    static struct start s;
    static Weft__V1__Spent *many[HISTORY_SPENT + 1];
    fill(&s, 0, 1);
    const struct {
        int64_t *number, least, most;
    } rows[] = {{&s.running.ms, 0, HISTORY_NUMBER},
                {&s.event[7].t_ms, 0, HISTORY_NUMBER},
                {&s.event[7].step, -1, HISTORY_NUMBER}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < 4; k++) {
            *rows[i].number = k < 2 ? rows[i].least - k : rows[i].most + k - 2;
            assert_int_equal(read_packed(&s.reply), k % 2 ? ERR_DATA : 0);
        }
        *rows[i].number = 0;
    }
    for (int i = 0; i <= HISTORY_SPENT; i++)
        many[i] = &s.running;
    s.reply.spent = many;
    for (s.reply.n_spent = HISTORY_SPENT; s.reply.n_spent <= HISTORY_SPENT + 1; s.reply.n_spent++)
        assert_int_equal(read_packed(&s.reply), s.reply.n_spent > HISTORY_SPENT ? ERR_DATA : 0);
    free(s.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_events_of_all_starts_are_kept),
        cmocka_unit_test(long_texts_leave_room_for_fewer),
        cmocka_unit_test(what_no_start_can_have_done_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
