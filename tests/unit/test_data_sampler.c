// SPDX-License-Identifier: Apache-2.0
// The order of samples: every sample once an epoch, whatever the batch; another order in another
// epoch and for another seed; the same global batch however ranks and microbatches share it.

#include <stdlib.h>
#include <string.h>

#include "common/data/sampler.h"
#include "tests/unit/unit.h"

// The first `epochs` epochs as one sequence, drawn batch by batch; the last batch may be cut.
static uint64_t *draw(const struct sampler *s, uint64_t epochs)
{
    uint64_t total = epochs * s->n;
    uint64_t *ids = malloc(total * sizeof *ids);
    for (uint64_t at = 0; at < total; at += s->batch) {
        uint64_t count = total - at < s->batch ? total - at : s->batch;
        sampler_ids(s, at / s->batch, 0, count, ids + at);
    }
    return ids;
}

static void assert_each_once(const uint64_t *ids, uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        assert_true(ids[i] < n);
        assert_int_equal(seen[ids[i]], 0);
        seen[ids[i]] = 1;
    }
    free(seen);
}

static void every_sample_comes_once_an_epoch(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 10, 1000, 60000}, batches[] = {1, 7, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof batches / sizeof *batches; j++) {
            struct sampler s = {.n = sizes[i], .batch = batches[j], .seed = 1};
            uint64_t *ids = draw(&s, 3);
            for (int epoch = 0; epoch < 3; epoch++)
                assert_each_once(ids + epoch * s.n, s.n);
            free(ids);
        }
}

static void epochs_and_seeds_have_orders_of_their_own(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct sampler one = {.n = N, .batch = 50, .seed = 1}, two = {.n = N, .batch = 50, .seed = 2};
    uint64_t *a = draw(&one, 2), *b = draw(&two, 1);
    int same_epochs = 0, same_seeds = 0, in_place = 0;
    for (int i = 0; i < N; i++) {
        same_epochs += a[i] == a[N + i];
        same_seeds += a[i] == b[i];
        in_place += a[i] == (uint64_t)i;
    }
    // Of 1000 places, two random orders agree in one on average; 12 or more once in 10^9.
    assert_true(same_epochs < 12 && same_seeds < 12 && in_place < 12);
    free(a);
    free(b);
}

static void the_batch_size_does_not_change_the_order(void **state)
{
    (void)state;
    struct sampler small = {.n = 100, .batch = 3, .seed = 5},
                   large = {.n = 100, .batch = 64, .seed = 5};
    uint64_t *a = draw(&small, 2), *b = draw(&large, 2);
    assert_memory_equal(a, b, 200 * sizeof *a);
    free(a);
    free(b);
}

// Another batch from step 7 on takes the samples that follow those of before.
static void a_batch_that_changes_on_the_way_repeats_and_leaves_out_none(void **state)
{
    (void)state;
    struct sampler before = {.n = 100, .batch = 9, .seed = 5}, after = before;
    uint64_t *order = draw(&before, 2), ids[16];
    after.from = 7;
    after.drawn = sampler_drawn(&before, 7);
    after.batch = 16;
    assert_int_equal(after.drawn, 63);
    for (uint64_t step = 7; step < 12; step++) {
        sampler_ids(&after, step, 0, 16, ids);
        assert_memory_equal(ids, order + 63 + (step - 7) * 16, sizeof ids);
    }
    assert_int_equal(sampler_drawn(&after, 12), 63 + 5 * 16);
    free(order);
}

// Microbatch m of M holds positions [m·B/M, (m+1)·B/M), of which rank r of R holds its R-th part.
static void ranks_and_microbatches_share_out_one_global_batch(void **state)
{
    (void)state;
    enum { B = 24 };
    static const uint64_t splits[][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 3}, {2, 3}, {4, 6}};
    struct sampler s = {.n = 100, .batch = B, .seed = 9};
    uint64_t whole[B], parts[B];
    for (uint64_t step = 0; step < 10; step++) {
        sampler_ids(&s, step, 0, B, whole);
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
            uint64_t ranks = splits[i][0], micro = splits[i][1], each = B / micro / ranks;
            memset(parts, 0xff, sizeof parts);
            for (uint64_t r = 0; r < ranks; r++)
                for (uint64_t m = 0; m < micro; m++) {
                    uint64_t first = m * (B / micro) + r * each;
                    sampler_ids(&s, step, first, each, parts + first);
                }
            assert_memory_equal(parts, whole, sizeof whole);
        }
    }
}

static void a_batch_may_hold_several_epochs(void **state)
{
    (void)state;
    struct sampler s = {.n = 3, .batch = 9, .seed = 1};
    uint64_t ids[9];
    sampler_ids(&s, 4, 0, 9, ids);
    for (int epoch = 0; epoch < 3; epoch++)
        assert_each_once(ids + 3 * epoch, 3);
}

static void an_evaluation_runs_its_set_in_file_order_and_fills_up_with_the_last_sample(void **state)
{
    (void)state;
    static const uint64_t want[5][3] = {{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 10}, {10, 10, 10}};
    struct sampler_eval s;
    uint64_t ids[3];
    sampler_eval_init(&s, 11, 3, 0);
    assert_int_equal(s.batches, 3);
    assert_int_equal(s.rest, 2);
    for (uint64_t k = 0; k < 5; k++) {
        sampler_eval_ids(&s, k, 0, 3, ids);
        assert_memory_equal(ids, want[k], sizeof ids);
    }
    sampler_eval_ids(&s, 1, 2, 1, ids);
    assert_int_equal(ids[0], 5);
}

static void an_evaluation_may_be_shorter_but_not_longer_than_its_data(void **state)
{
    static const struct {
        uint64_t n, batch, wanted, batches, rest;
    } cases[] = {{100, 10, 4, 4, 0},   {100, 10, 40, 10, 0}, {103, 10, 10, 10, 0},
                 {103, 10, 11, 10, 3}, {103, 10, 0, 10, 3},  {63, 64, 0, 0, 63}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler_eval s;
        sampler_eval_init(&s, cases[i].n, cases[i].batch, cases[i].wanted);
        assert_int_equal(s.batches, cases[i].batches);
        assert_int_equal(s.rest, cases[i].rest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_an_epoch),
        cmocka_unit_test(epochs_and_seeds_have_orders_of_their_own),
        cmocka_unit_test(the_batch_size_does_not_change_the_order),
        cmocka_unit_test(a_batch_that_changes_on_the_way_repeats_and_leaves_out_none),
        cmocka_unit_test(ranks_and_microbatches_share_out_one_global_batch),
        cmocka_unit_test(a_batch_may_hold_several_epochs),
        cmocka_unit_test(
            an_evaluation_runs_its_set_in_file_order_and_fills_up_with_the_last_sample),
        cmocka_unit_test(an_evaluation_may_be_shorter_but_not_longer_than_its_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
