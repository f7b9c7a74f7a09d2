// SPDX-License-Identifier: Apache-2.0
// Numbers as programs compute with them: whole ones, others, and lists of whole ones.
// Inside common/language/ only.
#pragma once
#include "common/language/syntax.h"

static const double NUMBER_LARGEST = 9007199254740992; // whole numbers up to here are exact

struct number {
    double value; // of a condition 1 or 0
    bool whole;   // meant as a whole number: made of such alone, though a quotient may not be one
    bool list;
    int n; // LIST
    const int64_t *item;
};

bool number_is_whole(double value);
struct number number_of(double value, bool whole);

// What an operator makes of two numbers, or of one (b is not read). A null `fault` on return says
// that all went well; else it says what is wrong.
struct number number_apply(enum sign sign, struct number a, struct number b, const char **fault);

// A function of numbers: floor(x), sqrt(x), count(list) … NULL: there is none of this name.
struct number_function {
    const char *name;
    int nargs;
    bool takes_list;
};
const struct number_function *number_function(const char *name);
// Calls it with n arguments; `fault` as above.
struct number number_call(struct arena *a, const struct number_function *f,
                          const struct number *arg, int n, const char **fault);
