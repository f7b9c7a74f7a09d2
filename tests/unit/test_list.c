// SPDX-License-Identifier: Apache-2.0
// Lists: order of appending, removal anywhere and twice, removal inside the loop.

#include "common/base/list.h"
#include "tests/unit/unit.h"

struct item {
    int n;
    struct list link;
};

static int digits_in_order(struct list *head)
{
    int all = 0;
    list_for_each (it, head)
        all = all * 10 + list_entry(it, struct item, link)->n;
    return all;
}

static void fill(struct list *head, struct item items[5])
{
    list_init(head);
    for (int i = 0; i < 5; i++) {
        items[i].n = i + 1;
        list_append(head, &items[i].link);
    }
}

static void elements_come_in_the_order_they_were_appended(void **state)
{
    (void)state;
    struct list head;
    struct item items[5];
    list_init(&head);
    assert_true(list_empty(&head));
    assert_int_equal(digits_in_order(&head), 0);
    fill(&head, items);
    assert_false(list_empty(&head));
    assert_int_equal(digits_in_order(&head), 12345);
    assert_ptr_equal(list_entry(head.prev, struct item, link), &items[4]);
}

static void first_middle_and_last_can_be_removed_even_twice(void **state)
{
    (void)state;
    struct list head;
    struct item items[5];
    fill(&head, items);
    list_remove(&items[2].link);
    list_remove(&items[2].link);
    assert_int_equal(digits_in_order(&head), 1245);
    list_remove(&items[0].link);
    list_remove(&items[4].link);
    assert_int_equal(digits_in_order(&head), 24);
    list_append(&head, &items[0].link);
    assert_int_equal(digits_in_order(&head), 241);
}

static void the_element_at_hand_may_be_removed_inside_the_loop(void **state)
{
    (void)state;
    struct list head;
    struct item items[5];
    fill(&head, items);
    list_for_each (it, &head) {
        if (list_entry(it, struct item, link)->n % 2)
            list_remove(it);
    }
    assert_int_equal(digits_in_order(&head), 24);
    list_for_each (it, &head)
        list_remove(it);
    assert_true(list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_come_in_the_order_they_were_appended),
        cmocka_unit_test(first_middle_and_last_can_be_removed_even_twice),
        cmocka_unit_test(the_element_at_hand_may_be_removed_inside_the_loop),
    };
    return cmocka_run_group_tests_name("list", tests, NULL, NULL);
}
