// SPDX-License-Identifier: Apache-2.0
// The row type of the job file's schema. Each module has a const table of rows for its own keys.
// One list above common/job collects them (plan/schema_list.c), and common/job parses against it.
// A row is at once the parser's rule, the default, the documentation (`weft schema`,
// common/job/KEYS.md) and the printer of the resolved form.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum schema_type {
    SCHEMA_INT,       // int64_t; "10k" style suffixes are not numbers
    SCHEMA_FLOAT,     // double
    SCHEMA_BOOL,      // bool
    SCHEMA_STRING,    // const char *, arena-owned
    SCHEMA_TEXT,      // the same, of any number of lines; printed as a block
    SCHEMA_ENUM,      // int, an index into `names`
    SCHEMA_DURATION,  // int64_t nanoseconds; "5s", "100ms", "2m"; printed in the largest exact unit
    SCHEMA_INT_LIST,  // struct schema_list of int64_t
    SCHEMA_PAIR,      // two doubles side by side, [0.9, 0.999]
    SCHEMA_DURATIONS, // two int64_t nanoseconds side by side, [1s, 60s]
    SCHEMA_MESH,      // struct job_mesh: {axis: size, …}, ordered
    SCHEMA_GLOBS,     // struct schema_list of const char *; one may stand without brackets
    SCHEMA_NAMES,     // the same, each as `valid` allows, and there may be none
    SCHEMA_RENAMES,   // struct schema_list of struct job_rename: {pattern: pattern, …}
    SCHEMA_GROUPS,    // groups of struct job_optimizer (offset 0): [{match: glob, …}, …]
    // Of struct job_sharding, each at offset 0:
    SCHEMA_RULES,  // {dimension: axis | [axes] | null, …}: what is given replaces that key only
    SCHEMA_PARAMS, // [{match: glob, min: [sizes], spec: [entries]}, …]
    SCHEMA_POINTS, // {activation point: [entries], …}
    SCHEMA_AXES,   // [axes]
    SCHEMA_REFINE, // struct job_refine: [axes], or a list of parameter specs
    SCHEMA_COUNT
};

// What another setting means to a training that continues with it. Whatever is allowed is recorded in
// its checkpoints, with the step.
enum schema_continues {
    CONTINUE_SAME = 1, // what is learnt stays the same, but for rounding
    CONTINUE_CHANGES,  // may change: from that step on it learns otherwise
    CONTINUE_FITS,     // may change as long as every parameter stays as it is
    CONTINUE_REFUSED,  // it would be another training
};

struct schema_list {
    int n;
    void *items; // as its row's type says
};

struct schema_row {
    const char *path; // "optimizer.betas"
    enum schema_continues continues;
    enum schema_type type;
    size_t offset;       // of the field in the table's section
    const char *def;     // the default as YAML text; null: required, or `derived`
    const char *derived; // in words, where the default follows from other keys; job/check.c sets it
    const char *unit;    // "samples", "steps", … or null
    const char *doc;     // one sentence for the table
    double min, max;     // of numbers, durations in seconds, list items; min == max: unbounded
    bool above_min;      // min itself is refused
    bool below_max;      // max itself is refused
    int min_items, max_items;
    const char *const *names; // SCHEMA_ENUM, null-terminated
    bool is_path;             // SCHEMA_STRING: of a file or folder
    bool (*valid)(
        const char *text); // SCHEMA_STRING, SCHEMA_NAMES: what `doc` allows; null: anything
    const char *when; // "optimizer.kind=adam|adamw": else the key is an error and its field zero;
                      // "data.eval.images|data.eval.tokens": acts when one of them is given
    bool optional;    // no default and not required: absent is a value (null)
};

struct schema_table {
    const struct schema_row *rows;
    int n;
    size_t section; // offset in struct job of what the rows' offsets are relative to
};

struct job;
// A layer is a turn of a repeat, a `layer` block or a numbered one that lies in no other layer.
struct job_layers {
    int n;
    bool blocks; // there are named blocks outside layers
    int skipped; // the line of a loss or a report, which sampling leaves out, with layers ahead of
                 // some that sampling needs; 0: there is none
};

struct job_graph { // what only the model's graph shows
    struct job_layers layers;
    bool compared;   // the caller wants the next; then the job is one that was read whole
    char params[65]; // a digest of the parameters: their paths, shapes, and which are frozen
};

struct schema {
    const struct schema_table *const *tables; // in the order of the printed form
    int n;
    // Builds the model of a job. Returns an error code where it cannot be built, which whoever
    // compiles the job reports.
    int (*build)(const struct job *job, struct job_graph *out);
};
