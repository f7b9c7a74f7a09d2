// SPDX-License-Identifier: Apache-2.0
// An intrusive doubly linked list: the link lies in the element, the list owns nothing.
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next; // of a head: last and first
};

static inline void list_init(struct list *head)
{
    head->prev = head->next = head;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline int list_length(const struct list *head)
{
    int n = 0;
    for (const struct list *it = head->next; it != head; it = it->next)
        n++;
    return n;
}

static inline void list_append(struct list *head, struct list *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

// The removed link points to itself, so a second removal does no harm.
static inline void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

#define list_entry(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))
// The element at hand may be removed inside the loop.
#define list_for_each(it, head)                                               \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head); \
         it = it##_next, it##_next = it->next)
