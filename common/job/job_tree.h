// SPDX-License-Identifier: Apache-2.0
// A job file's text as a bounded tree with positions, and the list of what is wrong with it.
// Inside common/job/ only. Anchors, aliases and tags are refused, so that a tree is never larger
// than its text.
#pragma once
#include "common/job/job.h"

enum tree_kind { TREE_SCALAR, TREE_MAP, TREE_LIST, TREE_BROKEN }; // broken: already reported

struct tree_source { // the file, or one override
    const char *name;
    int index;     // order of errors
    bool one_line; // an override, or the resolved form: positions inside it say nothing
};

struct tree_node {
    enum tree_kind kind;
    const struct tree_source *source;
    int line, column; // from 1
    const char *text; // scalars: UTF-8 without control characters
    bool plain;       // scalars: without quotes
    const char *key;  // of a map's member
    int key_line, key_column;
    struct tree_node *first, *last, *next; // members
    int count;
};

struct tree_errors {
    struct arena *arena;
    struct tree_error {
        const struct tree_source *source;
        int line, column, order;
        const char *path, *message;
    } * items;
    int n, cap;
};

// Reads one document. Null when the text is not YAML at all (reported). Duplicate keys and refused
// features are reported and the rest is read on. tree_read: an empty text is an empty map;
// tree_read_value: it is a null.
struct tree_node *tree_read(const struct tree_source *source, const char *text, size_t len,
                            struct tree_errors *errors);
struct tree_node *tree_read_value(const struct tree_source *source, const char *text, size_t len,
                                  struct tree_errors *errors);

struct tree_node *tree_get(const struct tree_node *map, const char *key); // null when absent
// The deepest node that there is towards a path, "model.seq", which ends at `len`.
const struct tree_node *tree_nearest(const struct tree_node *at, const char *path, size_t len);
// Replaces the member of that key by `value`, or appends it.
void tree_put(struct tree_node *map, const char *key, struct tree_node *value);
void tree_drop(struct tree_node *map, const char *key);   // absent is fine
bool tree_is_null(const struct tree_node *node);          // a plain "", "~" or "null"
const char *tree_kind_text(const struct tree_node *node); // "a list"

void tree_error(struct tree_errors *errors, const struct tree_node *at, const char *path,
                const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void tree_error_key(struct tree_errors *errors, const struct tree_node *member, const char *path,
                    const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void tree_error_at(struct tree_errors *errors, const struct tree_source *source, int line,
                   int column, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
// Gives the errors in the order of the file, at most JOB_MAX_ERRORS of them.
void tree_errors_give(struct tree_errors *errors, struct job_errors *to);
