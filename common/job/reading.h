// SPDX-License-Identifier: Apache-2.0
// A job file being read: the tree, the job it fills, and what each schema row got. Inside job/
// only.
#pragma once
#include "common/job/job_tree.h"

struct reading_row {
    const struct schema_row *row;
    void *field;            // in the job
    struct tree_node *node; // null: not given
    bool active;            // its `when` holds
    bool ok; // the field has its value: given and right, default, or derived by check
};

struct reading {
    struct arena *arena;
    const struct schema *schema;
    struct job *job;
    struct tree_node *root;
    struct tree_errors errors;
    struct reading_row *rows;
    int n;
};

// The row of a path that exists.
struct reading_row *reading_row(struct reading *r, const char *path);
// Reports at the row's value, or where it would stand when it is not given.
void reading_error(struct reading *r, const struct reading_row *row, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

enum { MESH_LARGEST = 65536 }; // devices

// A value and the rule it is read by. False after reporting.
struct value {
    struct arena *arena;
    struct tree_errors *errors;
    const struct schema_row *row;
    const struct tree_node *node;
    const char *path; // the row's, or an item's: "model.hidden[2]"
};
struct value_type {
    const char *name; // for the schema table: "integer"
    bool (*read)(const struct value *v, void *field);
    void (*print)(const struct schema_row *row, const void *field, struct buf *to);
};
extern const struct value_type value_types[SCHEMA_COUNT];

bool value_error(const struct value *v, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));                     // always false
bool value_is_scalar(const struct value *v, const char *want); // else reports
bool value_read_int(const struct value *v, void *field);
bool value_read_int_list(const struct value *v, void *field);
bool value_read_float(const struct value *v, void *field);
bool value_read_string(const struct value *v, void *field);
void value_print_int(const struct schema_row *row, const void *field, struct buf *to);
void value_print_int_list(const struct schema_row *row, const void *field, struct buf *to);
void value_print_float(const struct schema_row *row, const void *field, struct buf *to);
void value_print_string(const struct schema_row *row, const void *field, struct buf *to);

bool value_read_mesh(const struct value *v, void *field);
void value_print_mesh(const struct schema_row *row, const void *field, struct buf *to);
bool rule_known(const char *name); // of a logical dimension
bool value_read_rules(const struct value *v, void *field);
void value_print_rules(const struct schema_row *row, const void *field, struct buf *to);
bool value_read_params(const struct value *v, void *field);
void value_print_params(const struct schema_row *row, const void *field, struct buf *to);
bool value_read_points(const struct value *v, void *field);
void value_print_points(const struct schema_row *row, const void *field, struct buf *to);
bool value_read_axes(const struct value *v, void *field);
void value_print_axes(const struct schema_row *row, const void *field, struct buf *to);
bool value_read_refine(const struct value *v, void *field);
void value_print_refine(const struct schema_row *row, const void *field, struct buf *to);
bool value_read_groups(const struct value *v, void *field);
void value_print_groups(const struct schema_row *row, const void *field, struct buf *to);

// Whether the row's `when` holds for the job at hand.
bool when_holds(const struct schema *schema, const struct job *job, const struct schema_row *row);
// "optimizer.kind is adam or adamw", "data.eval.images is given"; "" when the key always acts.
const char *when_text(const struct schema_row *row, struct arena *a);

// Fills what follows from other keys and reports what does not fit together.
void check_job(struct reading *r);
void check_pipeline(struct reading *r);

// The same of data.tokenizer and eval.sample.
void check_sample(struct reading *r);

// Rows are numbered through all tables, in the order of the resolved form.
int schema_rows(const struct schema *schema);
const struct schema_row *schema_row(const struct schema *schema, int i, size_t *offset);
// The row of a path that exists.
const struct schema_row *schema_find(const struct schema *schema, const char *path, size_t *offset);

// The nearest of `known` to `word` when it is near enough to be what was meant, else null.
const char *suggest(const char *word, const char *const *known, int n);
