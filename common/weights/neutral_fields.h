// SPDX-License-Identifier: Apache-2.0
// Fields of config.json that change nothing of what a model computes, each with its reason. Inside
// common/weights/ only.
#pragma once

struct neutral_field {
    const char *name;
    const char *only; // the one JSON value with which it is neutral; null: any
    const char *why;
};
extern const struct neutral_field neutral_fields[]; // ends with a null name

// Neutral, whatever the value, where another field of the same file is false.
struct switched_field {
    const char *name, *by;
};
extern const struct switched_field switched_fields[]; // ends with a null name
