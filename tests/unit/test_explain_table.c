// SPDX-License-Identifier: Apache-2.0
// Tables of a plan: rows of layers that say the same are one, and no row is lost.
#include <stdio.h>
#include <string.h>

#include "common/explain/plan_table.h"
#include "tests/unit/unit.h"

struct table {
    struct arena arena;
    struct plan_table rows;
    struct buf text;
};

static void add(struct table *t, const char *what, const char *name, const char *tail)
{
    t->rows.arena = &t->arena;
    t->rows.name = 1;
    plan_table_add(&t->rows, (const char *[PLAN_CELLS]){what, name}, tail);
}

static void check(struct table *t, const char *text)
{
    plan_table_print(&t->rows, &t->text);
    assert_string_equal(buf_str(&t->text), text);
    plan_table_clear(&t->rows);
    buf_clear(&t->text);
    arena_clear(&t->arena);
}

static void layers_that_say_the_same_are_one_row(void **state)
{
    (void)state;
    struct table t = {0};
    add(&t, "gather", "embed/tokens", "1 KiB");
    add(&t, "gather", "layers/0/w", "8 B");
    add(&t, "gather", "layers/0/b", "8 B");
    add(&t, "gather", "layers/1/w", "8 B");
    add(&t, "gather", "layers/1/b", "8 B");
    check(&t, "  gather  embed/tokens  1 KiB\n"
              "  gather  layers/0…1/w  8 B, each of 2\n"
              "  gather  layers/0…1/b  8 B, each of 2\n");
}

static void a_layer_that_differs_keeps_its_row(void **state)
{
    (void)state;
    struct table t = {0};
    for (int i = 11; i >= 0; i--) { // as the backward comes to them
        char name[20];
        snprintf(name, sizeof name, "layers/%d/w", i);
        add(&t, i == 7 ? "reduce" : "gather", name, i == 3 ? "9 B" : "8 B");
    }
    check(&t, "  gather  layers/0…2,4…6,8…11/w  8 B, each of 10\n"
              "  reduce  layers/7/w             8 B\n"
              "  gather  layers/3/w             9 B\n");
}

static void what_a_layer_does_twice_is_two_rows(void **state)
{
    (void)state;
    struct table t = {0};
    for (int i = 0; i < 2; i++) {
        add(&t, "gather", i ? "layers/4/x" : "layers/2/x", "8 B");
        add(&t, "gather", i ? "layers/4/x" : "layers/2/x", "8 B");
    }
    check(&t, "  gather  layers/2,4/x  8 B, each of 2\n"
              "  gather  layers/2,4/x  8 B, each of 2\n");
}

static void only_a_whole_part_of_a_path_is_a_layer(void **state)
{
    (void)state;
    struct table t = {0};
    add(&t, "gather", "norm1/w", "8 B");
    add(&t, "gather", "norm2/w", "8 B");
    add(&t, "gather", "blocks/0/layers/1/w", "8 B");
    add(&t, "gather", "blocks/1/layers/1/w", "8 B");
    add(&t, "gather", "blocks/1/layers/2/w", "8 B");
    check(&t, "  gather  norm1/w                8 B\n"
              "  gather  norm2/w                8 B\n"
              "  gather  blocks/0…1/layers/1/w  8 B, each of 2\n"
              "  gather  blocks/1/layers/2/w    8 B\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_say_the_same_are_one_row),
        cmocka_unit_test(a_layer_that_differs_keeps_its_row),
        cmocka_unit_test(what_a_layer_does_twice_is_two_rows),
        cmocka_unit_test(only_a_whole_part_of_a_path_is_a_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
