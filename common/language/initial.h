// SPDX-License-Identifier: Apache-2.0
// How parameters are born: what stands behind ~ in a program, and model.init of a job.
#pragma once
#include <stdbool.h>

enum initial_kind {
    INITIAL_UNSAID,
    INITIAL_ZEROS,
    INITIAL_ONES,
    INITIAL_NORMAL,    // number: the deviation, as of the next two
    INITIAL_TRUNCATED, // within two deviations of the normal that is cut
    INITIAL_UNIFORM,
    INITIAL_FAN_IN, // normal with variance number / fan-in
    INITIAL_HE_NORMAL,
    INITIAL_HE_UNIFORM,
    INITIAL_XAVIER_NORMAL,
    INITIAL_XAVIER_UNIFORM,
};
struct initial {
    enum initial_kind kind;
    double number;
};
#define INITIAL_FORMS                                                            \
    "zeros, ones, normal(DEVIATION), truncated(DEVIATION), uniform(DEVIATION), " \
    "fan_in(GAIN), he_normal, he_uniform, xavier_normal or xavier_uniform"

// The kind of a name, with a number in brackets or without. INITIAL_UNSAID: there is none.
enum initial_kind initial_find(const char *name, bool number);
// Reads what a job may say of its weights, "normal(0.02)" or "he_normal". False: nothing of that form,
// or no positive number.
bool initial_read(const char *text, struct initial *out);
