// SPDX-License-Identifier: Apache-2.0
// The choice of a sample's next token.
#include <math.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/rand.h"
#include "tests/unit/unit.h"
#include "worker/rank/train/choice.h"

enum { N = 8, DRAWS = 200000 };
// ln of 1, 2, 4, 8, 4, 2, 1, 2: weights that sum to 24 at temperature 1.
static const int weight[N] = {1, 2, 4, 8, 4, 2, 1, 2};

static void set_logits(float *logits, double temperature)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)(temperature * log(weight[i])) + 5;
}

// Pearson's statistic of DRAWS draws against weights, over the ids of weight > 0; draws of others
// fail.
static double chi_square(double temperature, int64_t top_k, const int *want)
{
    const struct rand_site site = {.seed = 9, .stream = hash_fnv1a32("sample")};
    float logits[N];
    int32_t scratch[N];
    int seen[N] = {0};
    double total = 0, statistic = 0;
    set_logits(logits, temperature);
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct choice c = {.temperature = temperature, .top_k = top_k, .u = rand_uniform(&site, i)};
        seen[choice_token(&c, logits, N, scratch)]++;
    }
    for (int i = 0; i < N; i++)
        total += want[i];
    for (int i = 0; i < N; i++) {
        double expected = DRAWS * want[i] / total;
        if (want[i] == 0)
            assert_int_equal(seen[i], 0);
        else
            statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return statistic;
}

// The 99.99 % quantiles of chi-square: 29.9 for 7 degrees of freedom, 18.4 for 2, 23.5 for 4.
static void draws_follow_the_softmax_at_any_temperature(void **state)
{
    (void)state;
    assert_true(chi_square(1, 0, weight) < 29.9);
    assert_true(chi_square(0.25, 0, weight) < 29.9);
    assert_true(chi_square(7, 0, weight) < 29.9);
}

static void draws_are_among_the_top_k_alone(void **state)
{
    static const int three[N] = {0, 0, 4, 8, 4, 0, 0, 0};
    // Of the three ids of weight 2, the two smaller: 1 and 5.
    static const int five[N] = {0, 2, 4, 8, 4, 2, 0, 0};
    (void)state;
    assert_true(chi_square(1, 3, three) < 18.4);
    assert_true(chi_square(1, 5, five) < 23.5);
}

static void a_half_cold_draw_squares_the_odds(void **state)
{
    const struct rand_site site = {.seed = 1, .stream = 2};
    // Logits of odds 1 : 3; at temperature 1/2 the odds are 1 : 9.
    float logits[2] = {0, logf(3)};
    int32_t scratch[2];
    int ones = 0;
    (void)state;
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct choice c = {.temperature = 0.5, .u = rand_uniform(&site, i)};
        ones += choice_token(&c, logits, 2, scratch);
    }
    // Four standard deviations of a binomial of 200,000 at 0.9: 537.
    assert_true(abs(ones - DRAWS / 10 * 9) < 537);
}

static void without_a_temperature_the_most_likely_is_taken_the_first_of_equals(void **state)
{
    float logits[5] = {-1, 3, 0, 3, 2};
    int32_t scratch[5];
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(choice_token(&(struct choice){.u = (float)i / 4}, logits, 5, scratch), 1);
}

static void one_candidate_is_the_most_likely_whatever_the_draw(void **state)
{
    float logits[5] = {-1, 3, 0, 3, 2};
    int32_t scratch[5];
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct choice c = {.temperature = 3, .top_k = 1, .u = (float)i / 4};
        assert_int_equal(choice_token(&c, logits, 5, scratch), 1);
    }
}

static void the_ends_of_the_unit_interval_are_the_first_and_the_last_candidate(void **state)
{
    float logits[4] = {1, 1, 1, 1}, steep[3] = {0, 1000, -1000};
    int32_t scratch[4];
    struct choice c = {.temperature = 1, .u = 0};
    (void)state;
    assert_int_equal(choice_token(&c, logits, 4, scratch), 0);
    assert_int_equal(choice_token(&c, steep, 3, scratch), 1); // weights of 0 are never drawn
    c.u = nextafterf(1, 0);
    assert_int_equal(choice_token(&c, logits, 4, scratch), 3);
    assert_int_equal(choice_token(&c, steep, 3, scratch), 1);
}

static void a_logit_that_is_no_number_gives_no_token(void **state)
{
    float logits[3] = {0, 0, NAN};
    int32_t scratch[3];
    struct choice c = {0};
    (void)state;
    assert_int_equal(choice_token(&c, logits, 3, scratch), -1);
    assert_int_equal(choice_token(&c, logits, 2, scratch), 0); // padding is not looked at
    logits[2] = INFINITY;
    c.temperature = 1;
    assert_int_equal(choice_token(&c, logits, 3, scratch), -1);
}

// Logits are looked at in lanes, and what is left one by one.
static void no_place_of_a_logit_is_passed_over(void **state)
{
    enum { PLACES = 37 };
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    float logits[PLACES] = {0};
    int32_t scratch[PLACES];
    struct choice c = {0};
    (void)state;
    for (int32_t i = 0; i < PLACES; i++) {
        for (int k = 0; k < 3; k++) {
            logits[i] = odd[k];
            assert_int_equal(choice_token(&c, logits, PLACES, scratch), -1);
        }
        logits[i] = 1;
        assert_int_equal(choice_token(&c, logits, PLACES, scratch), i);
        logits[PLACES - 1] = 1; // of equals the first
        assert_int_equal(choice_token(&c, logits, PLACES, scratch), i);
        logits[i] = logits[PLACES - 1] = 0;
    }
}

// The candidates against a sort of all.
static void the_heap_keeps_what_a_sort_would(void **state)
{
    const struct rand_site site = {.seed = 4, .stream = 4};
    float logits[500];
    int32_t scratch[500];
    (void)state;
    for (int i = 0; i < 500; i++)
        logits[i] = floorf(40 * rand_uniform(&site, (uint64_t)i)); // many are equal
    for (int64_t k = 1; k <= 500; k += 31) {
        // The last candidate by id is what the greatest draw gives where weights are all alike.
        struct choice c = {.temperature = 1e6, .top_k = k, .u = nextafterf(1, 0)};
        int32_t got = choice_token(&c, logits, 500, scratch), want = -1;
        for (int i = 0; i < 500; i++) {
            int before = 0; // more likely ones
            for (int j = 0; j < 500; j++)
                before += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
            want = before < k ? i : want;
        }
        assert_int_equal(got, want);
    }
}

// ---- against transformers' rules, written down as they stand there --------------------------------

enum { VOCAB = 60, SETTINGS = 3000 };

// Each rule takes scores and takes ids out of them, −∞, by the softmax of what the one before left.
static void softmax(const double *scores, double *p)
{
    double most = -INFINITY, total = 0;
    for (int i = 0; i < VOCAB; i++)
        most = fmax(most, scores[i]);
    for (int i = 0; i < VOCAB; i++)
        total += p[i] = exp(scores[i] - most);
    for (int i = 0; i < VOCAB; i++)
        p[i] /= total;
}

// RepetitionPenaltyLogitsProcessor: the scores of the text's ids, each once.
static void penalise(const struct choice *c, double *scores)
{
    for (int id = 0; id < VOCAB; id++)
        for (int64_t k = 0; k < c->ntext; k++)
            if (c->text[k] == id) {
                float s = (float)scores[id], by = (float)c->penalty;
                scores[id] = (double)(s < 0 ? s * by : s / by);
                break;
            }
}

// TopKLogitsWarper: what is below the k-th greatest score.
static void keep_top_k(int64_t k, double *scores)
{
    bool out[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        int64_t above = 0;
        for (int j = 0; j < VOCAB; j++)
            above += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
        out[i] = above >= k;
    }
    for (int i = 0; i < VOCAB; i++)
        scores[i] = out[i] ? -INFINITY : scores[i];
}

// TopPLogitsWarper: from the least likely up, what has at most the share 1 − p together.
static void keep_top_p(double top_p, double *scores)
{
    double p[VOCAB];
    bool out[VOCAB];
    softmax(scores, p);
    for (int i = 0; i < VOCAB; i++) {
        double up_to_here = 0;
        int above = 0;
        for (int j = 0; j < VOCAB; j++) {
            bool more = p[j] > p[i] || (p[j] == p[i] && j < i);
            above += more;
            up_to_here += more ? 0 : p[j];
        }
        out[i] = above && up_to_here <= 1 - top_p;
    }
    for (int i = 0; i < VOCAB; i++)
        scores[i] = out[i] ? -INFINITY : scores[i];
}

// MinPLogitsWarper: what has less than that share of the greatest.
static void keep_min_p(double min_p, double *scores)
{
    double p[VOCAB], most = 0;
    softmax(scores, p);
    for (int i = 0; i < VOCAB; i++)
        most = fmax(most, p[i]);
    for (int i = 0; i < VOCAB; i++)
        scores[i] = p[i] < min_p * most ? -INFINITY : scores[i];
}

static int32_t draw_by_the_rules(const struct choice *c, const float *logits)
{
    double scores[VOCAB], p[VOCAB], before = 0;
    int32_t last = -1;
    for (int i = 0; i < VOCAB; i++)
        scores[i] = (double)logits[i];
    penalise(c, scores);
    for (int i = 0; i < VOCAB; i++)
        scores[i] /= c->temperature;
    if (c->top_k)
        keep_top_k(c->top_k, scores);
    if (c->top_p < 1)
        keep_top_p(c->top_p, scores);
    if (c->min_p > 0)
        keep_min_p(c->min_p, scores);
    softmax(scores, p);
    for (int i = 0; i < VOCAB; i++) {
        if (p[i] > 0)
            last = i;
        before += p[i];
        if ((double)c->u < before)
            return i;
    }
    return last;
}

// Draws that lie within rounding of a border are rare: one of 3,000 may differ.
static void random_settings_draw_what_transformers_rules_leave(void **state)
{
    const struct rand_site site = {.seed = 77, .stream = 5};
    uint64_t at = 0;
    int differ = 0, kept_fewer = 0;
    (void)state;
    for (int n = 0; n < SETTINGS; n++) {
        float logits[VOCAB], ours[VOCAB];
        int32_t text[20], scratch[VOCAB];
        for (int i = 0; i < VOCAB; i++)
            ours[i] = logits[i] = 8 * rand_uniform(&site, at++) - 4;
        for (int i = 0; i < 20; i++)
            text[i] = (int32_t)(VOCAB * rand_uniform(&site, at++));
        struct choice c = {.temperature = 0.2 + 2 * (double)rand_uniform(&site, at++),
                           .top_k = n & 1 ? 1 + (int64_t)(VOCAB * rand_uniform(&site, at++)) : 0,
                           .top_p = n & 2 ? (double)rand_uniform(&site, at++) : 1,
                           .min_p = n & 4 ? 0.5 * (double)rand_uniform(&site, at++) : 0,
                           .penalty = n & 8 ? 0.5 + 2 * (double)rand_uniform(&site, at++) : 1,
                           .text = text,
                           .ntext = 20,
                           .u = rand_uniform(&site, at++)};
        int32_t want = draw_by_the_rules(&c, logits);
        differ += choice_token(&c, ours, VOCAB, scratch) != want;
        kept_fewer += c.top_k || c.top_p < 1 || c.min_p > 0;
    }
    assert_true(kept_fewer > SETTINGS / 2);
    assert_in_range(differ, 0, 1);
}

static void a_log_share_is_the_softmaxs(void **state)
{
    const float logits[4] = {1000, 1000 + logf(2), -1000, 1000 + logf(5)};
    (void)state;
    assert_true(fabs(choice_log_share(logits, 4, 0) + log(8)) < 1e-4);
    assert_true(fabs(choice_log_share(logits, 4, 3) - log(5.0 / 8)) < 1e-4);
    assert_true(choice_log_share(logits, 4, 2) < -1999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax_at_any_temperature),
        cmocka_unit_test(draws_are_among_the_top_k_alone),
        cmocka_unit_test(a_half_cold_draw_squares_the_odds),
        cmocka_unit_test(without_a_temperature_the_most_likely_is_taken_the_first_of_equals),
        cmocka_unit_test(one_candidate_is_the_most_likely_whatever_the_draw),
        cmocka_unit_test(the_ends_of_the_unit_interval_are_the_first_and_the_last_candidate),
        cmocka_unit_test(a_logit_that_is_no_number_gives_no_token),
        cmocka_unit_test(no_place_of_a_logit_is_passed_over),
        cmocka_unit_test(the_heap_keeps_what_a_sort_would),
        cmocka_unit_test(random_settings_draw_what_transformers_rules_leave),
        cmocka_unit_test(a_log_share_is_the_softmaxs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
