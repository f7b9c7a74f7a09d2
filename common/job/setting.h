// SPDX-License-Identifier: Apache-2.0
// How the setting of one key is read from the tree and printed again, by the type of its schema
// row. Inside common/job/ only.
//
//   setting.c         numbers, durations, words and lists of numbers
//   job_mesh.c        mesh
//   job_sharding.c    rules, specs of parameters and of activation points, axes
//   param_groups.c    optimizer.groups
//   job_schema.c      the table of all types, which alone knows every reader
#pragma once
#include "common/job/job_tree.h"

// A setting as the file gives it, and the row that says what it may be.
struct setting {
    struct arena *arena;
    struct tree_errors *errors;
    const struct schema_row *row;
    const struct tree_node *node;
    const char *path; // the row's, or an item's: "model.hidden[2]"
};

// A reader fills the field and returns true, or reports what is wrong and returns false. `field` is
// what the row's offset names. A printer writes what reads back to the same field.
struct setting_type {
    const char *name; // for the table of keys: "integer"
    bool (*read)(const struct setting *s, void *field);
    void (*print)(const struct schema_row *row, const void *field, struct buf *to);
};
extern const struct setting_type setting_types[SCHEMA_COUNT];

// ---- setting.c ----
bool setting_error(const struct setting *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); // always false
// The setting of a map's member or of a list's item, with the path of that.
struct setting setting_member(const struct setting *s, const struct tree_node *member);
struct setting setting_item(const struct setting *s, const struct tree_node *item, int index);
// Reports a member whose key is none of the `n` known ones; `what` begins the list of those, "a
// group has". Always false.
bool setting_unknown_key(const struct setting *s, const char *const *known, int n,
                         const char *what);
int setting_line(const struct tree_node *node); // of the job file; 0: nobody has seen it
// Reads every item of a list with `read` into an array of `size`-byte items; false when any is wrong.
bool setting_read_items(const struct setting *s, bool (*read)(const struct setting *, void *),
                        void *items, size_t size);
// Prints so many of them, "[1, 2]".
void setting_print_items(const struct schema_row *row,
                         void (*print)(const struct schema_row *, const void *, struct buf *),
                         const void *items, size_t size, int n, struct buf *to);

bool setting_read_int(const struct setting *s, void *field);
bool setting_read_float(const struct setting *s, void *field);
bool setting_read_bool(const struct setting *s, void *field);
bool setting_read_string(const struct setting *s, void *field);
bool setting_read_text(const struct setting *s, void *field);
bool setting_read_enum(const struct setting *s, void *field);
bool setting_read_duration(const struct setting *s, void *field);
bool setting_read_int_list(const struct setting *s, void *field);
bool setting_read_pair(const struct setting *s, void *field);
bool setting_read_durations(const struct setting *s, void *field);
void setting_print_int(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_float(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_bool(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_string(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_text(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_enum(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_duration(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_int_list(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_pair(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_durations(const struct schema_row *row, const void *field, struct buf *to);

// ---- job_mesh.c, job_sharding.c, load_names.c, param_groups.c ----
const char *const *dimensions_ruled(int *n); // logical dimensions that have a rule in every job
bool dimension_known(const char *name);      // one of them
bool setting_read_mesh(const struct setting *s, void *field);
bool setting_read_rules(const struct setting *s, void *field);
bool setting_read_params(const struct setting *s, void *field);
bool setting_read_points(const struct setting *s, void *field);
bool setting_read_axes(const struct setting *s, void *field);
bool setting_read_refine(const struct setting *s, void *field);
bool setting_read_globs(const struct setting *s, void *field);
bool setting_read_names(const struct setting *s, void *field);
bool setting_read_renames(const struct setting *s, void *field);
bool setting_read_groups(const struct setting *s, void *field);
void setting_print_mesh(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_rules(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_params(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_points(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_axes(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_refine(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_names(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_renames(const struct schema_row *row, const void *field, struct buf *to);
void setting_print_groups(const struct schema_row *row, const void *field, struct buf *to);
