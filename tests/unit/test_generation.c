// SPDX-License-Identifier: Apache-2.0
// A conversation: each turn's text continues the one before, and ranks get what is new of it alone.
#include <stdlib.h>
#include <string.h>

#include "coordinator/cli/generation.h"
#include "tests/unit/unit.h"

enum { CONTEXT = 40, LONGEST = 200 };

// Ranks with one row. A token depends on all of the text, as far as the context goes.
struct local_ranks_double {
    int32_t text[LONGEST];
    int64_t n, got; // got: tokens that were sent
    int64_t spoilt; // the text of so many tokens has no finite logits; 0: none
    Weft__Rank__Answer answer;
    int32_t id, place;
};

static int answer_row(struct local_ranks *ranks, const Weft__Rank__Ask *question,
                      const Weft__Rank__Answer **answer, struct err *e)
{
    struct local_ranks_double *d = (struct local_ranks_double *)ranks;
    const Weft__Rank__Row *r = question->rows[0];
    uint32_t seen = 7;
    (void)e;
    assert_int_equal(question->n_rows, 1);
    assert_int_equal(r->row, 0);
    assert_true(d->n || r->begins);
    d->n = r->begins ? 0 : d->n;
    assert_true(d->n + (int64_t)r->n_ids <= LONGEST);
    for (size_t i = 0; i < r->n_ids; i++)
        d->text[d->n++] = r->ids[i];
    d->got += (int64_t)r->n_ids;
    for (int64_t i = d->n > CONTEXT ? d->n - CONTEXT : 0; i < d->n; i++)
        seen = seen * 31 + (uint32_t)d->text[i];
    d->id = d->n == d->spoilt ? -1 : (int32_t)(seen % 50);
    weft__rank__answer__init(&d->answer);
    d->answer.ids = &d->id;
    d->answer.n_ids = 1;
    d->answer.rows = &d->place;
    d->answer.n_rows = 1;
    *answer = &d->answer;
    return 0;
}

struct conversation {
    struct local_ranks_double ranks;
    struct tokenizer *tokenizer;
    struct generation g;
    struct arena arena;
    int32_t ids[LONGEST];
    int64_t n, kept;
    const char *ended;
};

static void begin_conversation(struct conversation *c)
{
    struct err e = {0};
    *c = (struct conversation){.g = {.ask = answer_row, .rows = 1}};
    if (tokenizer_open(&c->tokenizer, "ids", &e))
        fail_msg("%s", e.text);
    weft__rank__ask__init(&c->g.how);
    c->g.how.context = CONTEXT;
    c->g.tokenizer = c->tokenizer;
}

// Adds `more` tokens, and up to `tokens` that the ranks choose. Returns how many tokens were sent.
static int64_t take_turn(struct conversation *c, int more, int64_t tokens, bool whole)
{
    struct err e = {0};
    c->g.ranks = (struct local_ranks *)&c->ranks;
    c->ranks.got = 0;
    for (int i = 0; i < more; i++, c->n++)
        c->ids[c->n] = (int32_t)(c->n * 3 % 50);
    struct generated t = {
        .prompt = c->ids, .nprompt = c->n, .tokens = tokens, .kept = whole ? 0 : c->kept};
    if (generation_run(&c->g, &t, 1, &c->arena, &e))
        fail_msg("%s", e.text);
    for (int64_t i = 0; i < t.n; i++)
        c->ids[c->n++] = t.ids[i];
    c->kept = t.sent;
    c->ended = t.ended;
    generation_clear(&t, 1);
    return c->ranks.got;
}

static void end_conversation(struct conversation *c)
{
    tokenizer_close(c->tokenizer);
    arena_clear(&c->arena);
}

// Turns until the text is twice as long as the context: all have the tokens of one that is sent whole.
static void a_turn_sends_what_is_new_and_gets_the_tokens_of_the_whole_text(void **state)
{
    struct conversation kept, whole;
    int32_t stop[1];
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        begin_conversation(&kept);
        begin_conversation(&whole);
        for (int turn = 0; kept.n < 2 * CONTEXT; turn++) {
            const int64_t before = kept.kept, n = kept.n + 3;
            const int64_t sent = take_turn(&kept, 3, 5, false);
            take_turn(&whole, 3, 5, true);
            assert_int_equal(kept.n, whole.n);
            assert_memory_equal(kept.ids, whole.ids, sizeof *kept.ids * (size_t)kept.n);
            assert_memory_equal(kept.ranks.text, kept.ids, sizeof *kept.ids * (size_t)kept.ranks.n);
            assert_int_equal(sent, kept.ranks.n - (n > CONTEXT ? 0 : before));
            assert_int_equal(kept.kept, kept.ranks.n);
            assert_string_equal(kept.ended, whole.ended);
            assert_true(!turn || n > CONTEXT || sent <= 3 + 5);
            if (stops && turn == 0) { // a turn that ends by this id, which is no part of the text
                stop[0] = kept.ids[kept.n - 1];
                kept.g.stop_ids = whole.g.stop_ids = stop;
                kept.g.nstop_ids = whole.g.nstop_ids = 1;
            }
        }
        end_conversation(&kept);
        end_conversation(&whole);
    }
}

static void a_text_without_finite_logits_is_sent_whole_once_more(void **state)
{
    struct conversation c;
    (void)state;
    begin_conversation(&c);
    take_turn(&c, 4, 5, false);
    c.ranks.spoilt = c.n + 2;
    take_turn(&c, 2, 5, false);
    assert_string_equal(c.ended, "not finite");
    c.ranks.spoilt = 0;
    const int64_t n = c.n + 1;
    assert_int_equal(take_turn(&c, 1, 1, false), n);
    end_conversation(&c);
}

// Two rows, each on a rank of its own: the second text's answers first.
static int answer_backwards(struct local_ranks *ranks, const Weft__Rank__Ask *question,
                            const Weft__Rank__Answer **answer, struct err *e)
{
    static int32_t rows[2], ids[2];
    static Weft__Rank__Answer a;
    const int n = (int)question->n_rows;
    (void)e;
    weft__rank__answer__init(&a);
    for (int i = 0; i < n; i++) {
        rows[i] = ranks ? n - 1 : n - 1 - i; // ranks: both answer for the same one
        ids[i] = 2 + (int32_t)question->rows[rows[i]]->request;
    }
    a.rows = rows;
    a.ids = ids;
    a.n_rows = a.n_ids = (size_t)n;
    *answer = &a;
    return 0;
}

static void answers_are_for_the_rows_that_they_name(void **state)
{
    static const int32_t prompt[] = {1};
    struct conversation c;
    (void)state;
    begin_conversation(&c);
    c.g.ask = answer_backwards;
    c.g.rows = 2;
    for (int twice = 0; twice < 2; twice++) {
        struct err e = {0};
        struct generated t[2] = {{.prompt = prompt, .nprompt = 1, .tokens = 3},
                                 {.prompt = prompt, .nprompt = 1, .tokens = 1, .request = 1}};
        c.g.ranks = twice ? (struct local_ranks *)&c.ranks : NULL;
        assert_int_equal(generation_run(&c.g, t, 2, &c.arena, &e), twice ? ERR_INTERNAL : 0);
        assert_int_equal(t[1].n, 1);
        assert_int_equal(t[1].ids[0], 3);
        for (int i = 0; i < t[0].n; i++)
            assert_int_equal(t[0].ids[i], 2);
        assert_int_equal(t[0].n, twice ? 0 : 3);
        generation_clear(t, 2);
    }
    end_conversation(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_sends_what_is_new_and_gets_the_tokens_of_the_whole_text),
        cmocka_unit_test(answers_are_for_the_rows_that_they_name),
        cmocka_unit_test(a_text_without_finite_logits_is_sent_whole_once_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
