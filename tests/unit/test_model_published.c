// SPDX-License-Identifier: Apache-2.0
// The sizes of published models have the numbers of parameters that were published with them.
//
// To the element where weights were published: half the bytes that the index of their files gives,
// or the number that the files' heads add up to. What a paper alone says is held to its last digit.
// The rows that pad a vocabulary are left out.
#include <stdlib.h>

#include "common/language/model_sizes.h"
#include "common/plan/model_check.h"
#include "common/plan/schema_list.h"
#include "tests/unit/job_case.h"

static const struct published {
    const char *program, *size; // null: the program has no sizes to choose from
    int64_t count, unit;        // to this unit; 1: to the element
} published[] = {
    {"gpt2", "124m", 124439808, 1},
    {"gpt2", "350m", 354823168, 1},
    {"gpt2", "774m", 774030080, 1},
    {"gpt2", "1558m", 1557611200, 1},
    // Table D.1 of the paper, in millions
    {"gpt3", "125m", 125000000, 1000000},
    {"gpt3", "350m", 356000000, 1000000},
    {"gpt3", "760m", 760000000, 1000000},
    {"gpt3", "1b", 1320000000, 10000000},
    {"gpt3", "3b", 2650000000, 10000000},
    {"gpt3", "7b", 6660000000, 10000000},
    {"gpt3", "13b", 12850000000, 10000000},
    {"gpt3", "175b", 174600000000, 100000000},
    {"llama2", "7b", 6738415616, 1},
    {"llama2", "13b", 13015864320, 1},
    {"llama2", "70b", 68976648192, 1},
    {"llama", "1b", 1235814400, 1},
    {"llama", "3b", 3212749824, 1},
    {"llama", "8b", 8030261248, 1},
    {"llama", "70b", 70553706496, 1},
    {"llama", "405b", 405853388800, 1},
    {"mistral", NULL, 7241732096, 1},
    {"mixtral", "8x7b", 46702792704, 1},
    {"mixtral", "8x22b", 140630071296, 1},
    {"qwen2", "0.5b", 494032768, 1},
    {"qwen2", "1.5b", 1543714304, 1},
    {"qwen2", "7b", 7615616512, 1},
    {"qwen2", "72b", 72706203648, 1},
    {"qwen3", "0.6b", 596049920, 1},
    {"qwen3", "1.7b", 1720574976, 1},
    {"qwen3", "4b", 4022468096, 1},
    {"qwen3", "8b", 8190735360, 1},
    {"qwen3", "14b", 14768307200, 1},
    {"qwen3", "32b", 32762123264, 1},
    {"gemma2", "2b", 2614341888, 1},
    {"gemma2", "9b", 9241705984, 1},
    {"gemma2", "27b", 27227128320, 1},
    {"deepseek-v2-lite", NULL, 15706484224, 1},
    {"palm", "8b", 8630000000, 10000000},
    {"palm", "62b", 62500000000, 10000000},
    {"palm", "540b", 540350000000, 10000000},
    {"nanochat", NULL, 561000000, 1000000},
    {"jaxformer", NULL, 949000000, 1000000},
    // 2 · 256 · 512 + 128 · 512 + 4 · (4 · 512 · 1024 + 2 · 512 · 2048): a recipe, not a published
    // model
    {"cookbook", NULL, 17104896, 1},
};
enum { PUBLISHED = sizeof published / sizeof *published };

static int64_t count_params(const char *program, const char *size)
{
    struct arena a = {0};
    struct buf why = {0};
    struct model_checked checked;
    const char *sizes[] = {"vocab_multiple=1", size ? arena_printf(&a, "size=%s", size) : NULL};
    if (model_look(program, sizes, size ? 2 : 1, &a, &checked, &why))
        fail_msg("%s %s: %s", program, size ? size : "", buf_str(&why));
    int64_t n = checked.params;
    arena_clear(&a);
    return n;
}

static void published_sizes_have_their_published_parameters(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        const struct published *p = &published[i];
        int64_t n = count_params(p->program, p->size);
        // a paper's last digit may be cut off as well as rounded
        if (llabs(n - p->count) >= p->unit)
            fail_msg("%s %s has %lld parameters, not %lld", p->program, p->size ? p->size : "",
                     (long long)n, (long long)p->count);
    }
}

static bool is_listed(const char *program, const char *size)
{
    for (int i = 0; i < PUBLISHED; i++)
        if (strcmp(published[i].program, program) == 0 && published[i].size &&
            strcmp(published[i].size, size) == 0)
            return true;
    return false;
}

// So that no size is added whose parameters nobody has held against its publication.
static void every_size_that_a_program_names_is_in_the_table(void **state)
{
    int n = 0;
    (void)state;
    for (const struct model_text *t = model_texts; t->name; t++) {
        struct arena a = {0};
        struct model_errors errs = {.arena = &a};
        const struct model_program *p;
        assert_int_equal(model_program_read(t->name, t->text, strlen(t->text), &p, &errs), 0);
        int at = model_size_find(p, "size");
        for (const char *const *word = at < 0 ? NULL : p->sizes[at].words; word && *word; word++) {
            n++;
            if (!is_listed(t->name, *word))
                fail_msg("%s %s", t->name, *word);
        }
        arena_clear(&a);
    }
    assert_true(n > 30);
}

// A model of another width is no Llama 3.2: its head and its positions are its own.
static void another_width_leaves_the_head_untied(void **state)
{
    static const char *const sizes[] = {"embed=1024", "layers=1", "vocab=1024"};
    struct arena a = {0};
    struct buf why = {0};
    struct model_checked checked;
    (void)state;
    assert_int_equal(model_look("llama", sizes, 3, &a, &checked, &why), 0);
    assert_int_equal(model_sizes_whole(checked.job.model.sizes, "tied", -1), 0);
    // 2 · 1024 · 1024 of the vocabulary, q and out 1024², k and v a quarter of it each, three of
    // the MLP 1024 · 4096, three norms
    assert_int_equal(checked.params, 2 * 1048576 + 2 * 1048576 + 524288 + 3 * 4194304 + 3 * 1024);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes_have_their_published_parameters),
        cmocka_unit_test(every_size_that_a_program_names_is_in_the_table),
        cmocka_unit_test(another_width_leaves_the_head_untied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
