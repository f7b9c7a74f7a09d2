// SPDX-License-Identifier: Apache-2.0
// A job file being read: the tree, the job that it fills, and what each schema row got. Inside
// common/job/ only. Calls go down this list:
//
//   parse.c                           text, overrides, keys and settings, in this order
//   check.c                           what spans keys; it runs the checks of
//   job_model.c pipeline.c sample.c   the model, its stages, its samples
//   reading.c                         the rows of one reading and errors about them
//   schema.c                          the rows of all tables, and `when`
#pragma once
#include "common/job/setting.h"

struct reading_row {
    const struct schema_row *row;
    void *field;            // in the job
    struct tree_node *node; // null: not given
    bool active;            // its `when` holds
    bool ok; // the field has its value: given and right, default, or derived by check.c
};

struct reading {
    struct arena *arena;
    const struct schema *schema;
    struct job *job;
    const char *file; // null: the text is a resolved job
    struct tree_node *root;
    struct tree_errors errors;
    struct reading_row *rows;
    int n;
    bool model_ok;            // the model's sizes and facts are known
    bool built;               // the model was built, which gave
    struct job_layers layers; // these
};

// ---- reading.c ----
void reading_init_rows(struct reading *r); // every row of the schema, nothing given yet
// The row of a path that exists.
struct reading_row *reading_row(struct reading *r, const char *path);
bool reading_given(struct reading *r, const char *path);
// Whether every one of the paths (null-terminated) has its value: what checks ask first, since a
// wrong key is reported once.
bool reading_all_ok(struct reading *r, const char *const *paths);
#define READING_OK(r, ...) reading_all_ok(r, (const char *const[]){__VA_ARGS__, NULL})
// Reports that a required one is not given. Where its section is no map it lacks every key, and that is
// reported already.
void reading_missing(struct reading *r, const struct reading_row *row);
// Reports at the row's setting, or where it would stand when it is not given.
void reading_error(struct reading *r, const struct reading_row *row, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// ---- schema.c ----
// Rows are numbered through all tables, in the order of the resolved form.
int schema_rows(const struct schema *schema);
const struct schema_row *schema_row(const struct schema *schema, int i, size_t *offset);
// The row of a path in the schema that a job was read with, and its field there; null: it has none.
const struct schema_row *schema_find(const struct job *job, const char *path, const void **field);
// Whether the row's `when` holds for the job at hand.
bool when_holds(const struct job *job, const struct schema_row *row);
// "optimizer.kind is adam or adamw", "data.eval.images is given"; "" when the key always acts.
const char *when_text(const struct schema_row *row, struct arena *a);

// ---- check.c, pipeline.c, sample.c ----
// Each fills what follows from other keys and reports what does not fit together.
void check_job(struct reading *r);
void check_pipeline(struct reading *r);
void check_sample(struct reading *r); // data.tokenizer and eval.sample
