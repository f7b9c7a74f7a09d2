// SPDX-License-Identifier: Apache-2.0
// The row type of configuration schemas. A module's rows are a const table beside it; job/ collects
// them and parses against them. A row is at once the parser's rule, the default, the documentation
// (`weft schema`, README's table) and the printer of the resolved form.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum schema_type {
    SCHEMA_INT,      // int64_t; "10k" style suffixes are not numbers
    SCHEMA_FLOAT,    // double
    SCHEMA_BOOL,     // bool
    SCHEMA_STRING,   // const char *, arena-owned
    SCHEMA_ENUM,     // int, an index into `names`
    SCHEMA_DURATION, // int64_t nanoseconds; "5s", "100ms", "2m", "1h"; printed in the largest exact unit
    SCHEMA_BYTES,    // int64_t; "4KiB", "1MiB", "2GiB" or a plain integer
    SCHEMA_INT_LIST, SCHEMA_FLOAT_LIST, SCHEMA_STRING_LIST, // struct schema_list
    SCHEMA_CUSTOM,   // `custom` parses and prints (mesh, rules, optimiser groups, …)
    SCHEMA_COUNT
};

struct schema_list {
    int n;
    void *items; // int64_t, double or const char *
};

struct schema_custom; // job/ knows: how to parse, check and print a nested value

struct schema_row {
    const char *path;     // "optimizer.betas"
    enum schema_type type;
    size_t offset;        // of the field in struct job
    const char *def;      // the default as YAML text; null: required
    const char *unit;     // "samples", "steps", … or null
    const char *doc;      // one sentence for the table
    double min, max;      // numbers, or items of a list; min == max == 0: unbounded
    int min_items, max_items;
    const char *const *names; // SCHEMA_ENUM, null-terminated
    const struct schema_custom *custom;
    const char *when;     // "optimizer.kind=adam|adamw": the key acts only then, else it is an error
};
