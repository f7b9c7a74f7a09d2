// SPDX-License-Identifier: Apache-2.0
// Expressions that are one class of characters written out: [\r\n], [一-龥぀-ゟ]+, \s?[A-Za-z…]+. DeepSeek's
// have hundreds of ranges. Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct class_pattern {
    bool after_space, run; // \s? stands before it, + behind it
    uint64_t ascii[2];
    struct class_pattern_range {
        uint32_t first, last;
    } * ranges; // sorted, apart from each other
    size_t n;
};

// False: the expression is none of that form, and `p` is empty.
bool class_pattern_parse(struct class_pattern *p, const char *expression);
void class_pattern_clear(struct class_pattern *p); // a zeroed one is empty
bool class_pattern_find(const struct class_pattern *p, const char *s, const char *end,
                        const char **from, const char **to);
