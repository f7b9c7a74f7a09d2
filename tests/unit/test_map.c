// SPDX-License-Identifier: Apache-2.0
// Maps: put, get, remove; and long random histories against a plain array.
#include <stdio.h>
#include <string.h>

#include "common/base/map.h"
#include "common/base/rand.h"
#include "tests/unit/unit.h"

static void an_empty_map_holds_nothing(void **state)
{
    (void)state;
    struct map m = {0};
    assert_null(map_get(&m, "a"));
    assert_null(map_remove(&m, "a"));
    map_clear(&m);
    map_clear(&m);
}

static void a_put_returns_what_was_there(void **state)
{
    (void)state;
    struct map m = {0};
    int one, two;
    char key[] = "key";
    assert_null(map_put(&m, key, &one));
    key[0] = 'X'; // the map has its own copy
    assert_ptr_equal(map_get(&m, "key"), &one);
    assert_ptr_equal(map_put(&m, "key", &two), &one);
    assert_int_equal(m.n, 1);
    assert_null(map_put(&m, "", &one));
    assert_ptr_equal(map_get(&m, ""), &one);
    assert_ptr_equal(map_remove(&m, "key"), &two);
    assert_null(map_get(&m, "key"));
    assert_null(map_remove(&m, "key"));
    assert_int_equal(m.n, 1);
    map_clear(&m);
}

// Removal shifts the probe chains back, so what matters is a long mixed history near full load.
static void a_random_history_agrees_with_a_plain_array(void **state)
{
    (void)state;
    enum { KEYS = 400, STEPS = 40000 };
    static char cells[STEPS];
    void *want[KEYS] = {0};
    const struct rand_site site = {.seed = 1, .stream = 1};
    struct map m = {0};
    size_t n = 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        uint32_t w = rand_word(&site, i), k = w % KEYS;
        char key[16];
        snprintf(key, sizeof key, "k%u", k);
        if ((w >> 16) % 5 < 3) {
            assert_ptr_equal(map_put(&m, key, &cells[i]), want[k]);
            n += !want[k];
            want[k] = &cells[i];
        } else {
            assert_ptr_equal(map_remove(&m, key), want[k]);
            n -= want[k] != NULL;
            want[k] = NULL;
        }
        assert_int_equal(m.n, n);
        snprintf(key, sizeof key, "k%u", (k + 7) % KEYS);
        assert_ptr_equal(map_get(&m, key), want[(k + 7) % KEYS]);
    }
    for (unsigned k = 0; k < KEYS; k++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", k);
        assert_ptr_equal(map_get(&m, key), want[k]);
    }
    map_clear(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_map_holds_nothing),
        cmocka_unit_test(a_put_returns_what_was_there),
        cmocka_unit_test(a_random_history_agrees_with_a_plain_array),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
