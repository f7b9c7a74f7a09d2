// SPDX-License-Identifier: Apache-2.0
// A row as a database double keeps it: a copy of its own, and the struct that is read back from it.
#pragma once
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/notices.h"
#include "coordinator/decide/requests.h"
#include "coordinator/decide/row.h"

struct host;
struct fenced;
struct stored_row {
    struct row row;
    union { // by row.kind; its texts may be the copy's
        void *record;
        struct coord *meta;
        struct job_record *job;
        struct host *host;
        struct fenced *fenced;
        struct checkpoint_record *checkpoint;
        struct request *request;
        struct notice *notice;
        struct event_record *event;
        struct audit_record *audit;
    };
};

struct stored_row *
stored_row_new(const struct row *r); // the heap's; aborts where it cannot be read
void stored_row_free(struct stored_row *s);
void row_print_key(const struct row *r, char out[200]);   // "job ID", "event JOB SEQ", …
bool row_is_of_job(const struct row *r, const char *job); // goes with it
bool row_is_same(const struct row *a, const struct row *b);
struct value *row_values_copy(const struct row *r); // one block of the heap
// A row that can be, with something in every column that differs from column to column.
struct row row_filled(enum row_kind kind, int salt, struct arena *a);
struct value *row_value(const struct row *r, const char *column);
