// SPDX-License-Identifier: Apache-2.0
// Expressions that are one class. See class_pattern.h.
#include "common/tokenizer/class_pattern.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/tokenizer/char_class.h"

enum { ASCII = 128 };

// One character of a class: itself, or behind a backslash. False: something else stands there.
static bool read_character(const char **s, uint32_t *c)
{
    static const char named[][2] = {{'r', '\r'}, {'n', '\n'}, {'t', '\t'}};
    size_t n;
    if (**s == '\\') {
        (*s)++;
        for (size_t i = 0; i < sizeof named / sizeof *named; i++)
            if (**s == named[i][0]) {
                *c = (uint32_t)named[i][1];
                (*s)++;
                return true;
            }
        if (!**s || !strchr("\\[]^-./$*+?(){}|", **s))
            return false;
    } else if (!**s || strchr("[]^&", **s)) { // & may be the first of &&
        return false;
    }
    *c = char_at(*s, &n);
    *s += n;
    return true;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct class_pattern_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static void join_ranges(struct class_pattern *p)
{
    size_t n = 0;
    qsort(p->ranges, p->n, sizeof *p->ranges, compare_ranges);
    for (size_t i = 0; i < p->n; i++) {
        struct class_pattern_range r = p->ranges[i];
        if (n && r.first <= p->ranges[n - 1].last + 1)
            p->ranges[n - 1].last = r.last > p->ranges[n - 1].last ? r.last : p->ranges[n - 1].last;
        else
            p->ranges[n++] = r;
    }
    p->n = n;
}

static bool is_member(const struct class_pattern *p, uint32_t c)
{
    if (c < ASCII)
        return p->ascii[c / 64] >> c % 64 & 1;
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->ranges[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->n && p->ranges[low].first <= c;
}

static bool read_class(struct class_pattern *p, const char *s)
{
    p->after_space = strncmp(s, "\\s?", 3) == 0;
    s += p->after_space ? 3 : 0;
    if (*s++ != '[' || *s == ']')
        return false;
    for (; *s != ']'; p->n++) {
        struct class_pattern_range *r = &p->ranges[p->n];
        bool dash = *s == '-'; // first or last it stands for itself; elsewhere it would be odd
        if (!read_character(&s, &r->first) || (dash && *s != ']'))
            return false;
        r->last = r->first;
        if (*s == '-' && s[1] != ']') {
            s++;
            if (!read_character(&s, &r->last) || r->last < r->first)
                return false;
        }
    }
    s++;
    p->run = *s == '+';
    return s[p->run] == 0;
}

bool class_pattern_parse(struct class_pattern *p, const char *expression)
{
    *p = (struct class_pattern){.ranges = heap_alloc((strlen(expression) + 1) * sizeof *p->ranges)};
    if (!read_class(p, expression)) {
        class_pattern_clear(p);
        return false;
    }
    join_ranges(p);
    for (size_t i = 0; i < p->n; i++)
        for (uint32_t c = p->ranges[i].first; c <= p->ranges[i].last && c < ASCII; c++)
            p->ascii[c / 64] |= (uint64_t)1 << c % 64;
    return true;
}

void class_pattern_clear(struct class_pattern *p)
{
    free(p->ranges);
    *p = (struct class_pattern){0};
}

bool class_pattern_find(const struct class_pattern *p, const char *s, const char *end,
                        const char **from, const char **to)
{
    for (size_t n; s < end; s += n) {
        size_t member = 0;
        uint32_t c = char_at(s, &n);
        *from = s;
        *to = NULL;
        if (p->after_space && char_classes[c] & CHAR_SPACE && s + n < end &&
            is_member(p, char_at(s + n, &member)))
            *to = s + n + member;
        else if (is_member(p, c))
            *to = s + n;
        if (!*to)
            continue;
        while (p->run && *to < end && is_member(p, char_at(*to, &member)))
            *to += member;
        return true;
    }
    return false;
}
