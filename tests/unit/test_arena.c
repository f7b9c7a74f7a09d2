// SPDX-License-Identifier: Apache-2.0
// Arenas: aligned, zeroed, never overlapping, freed whole (the address sanitizer watches the last).
#include <string.h>

#include "common/base/arena.h"
#include "tests/unit/unit.h"

static void allocations_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    enum { N = 2000 };
    static unsigned char *p[N];
    struct arena a;
    arena_init(&a);
    for (size_t i = 0; i < N; i++) {
        size_t n = i * 37 % 900 + 1;
        p[i] = arena_alloc(&a, n);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(p[i][k], 0);
        memset(p[i], (int)(i % 251 + 1), n);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < i * 37 % 900 + 1; k++)
            assert_int_equal(p[i][k], i % 251 + 1);
    arena_clear(&a);
}

static void a_large_allocation_gets_a_block_of_its_own_size(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    char *small = arena_alloc(&a, 1), *large = arena_alloc(&a, 3 << 20), *next = arena_alloc(&a, 1);
    *small = *next = 's';
    memset(large, 'l', 3 << 20);
    assert_true(*small == 's' && *next == 's');
    arena_clear(&a);
}

static void a_cleared_arena_may_be_used_again(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    arena_clear(&a);
    memset(arena_alloc(&a, 100), 1, 100);
    assert_int_equal(a.bytes, 112);
    arena_clear(&a);
    assert_int_equal(a.bytes, 0);
    const char *again = arena_alloc(&a, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(again[i], 0);
    arena_clear(&a);
}

static void texts_are_copied_and_formatted(void **state)
{
    (void)state;
    struct arena a;
    char source[] = "shard";
    arena_init(&a);
    char *copy = arena_strdup(&a, source), *bytes = arena_dup(&a, source, 2);
    source[0] = 'X';
    assert_string_equal(copy, "shard");
    assert_memory_equal(bytes, "sh", 2);
    assert_non_null(arena_dup(&a, NULL, 0));
    assert_string_equal(arena_printf(&a, "%s-%05d", copy, 7), "shard-00007");
    char *longer = arena_printf(&a, "%*s|", 10000, "x");
    assert_int_equal(strlen(longer), 10001);
    assert_string_equal(longer + 9999, "x|");
    arena_clear(&a);
}

static void a_grown_array_keeps_its_elements(void **state)
{
    (void)state;
    struct arena a;
    int *items = NULL, cap = 0;
    arena_init(&a);
    for (int n = 0; n < 1000; n++) {
        items = arena_grow(&a, items, sizeof *items, n, &cap);
        assert_true(cap > n);
        items[n] = n * 3;
    }
    for (int n = 0; n < 1000; n++)
        assert_int_equal(items[n], n * 3);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_zeroed_and_apart),
        cmocka_unit_test(a_large_allocation_gets_a_block_of_its_own_size),
        cmocka_unit_test(a_cleared_arena_may_be_used_again),
        cmocka_unit_test(texts_are_copied_and_formatted),
        cmocka_unit_test(a_grown_array_keeps_its_elements),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
