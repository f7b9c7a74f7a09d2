// SPDX-License-Identifier: Apache-2.0
// The rows of the database: which members of the decider's structs are columns, of which name and
// form. The one table of a kind of rows (row.c) makes the SQL table (db.c), takes a snapshot of a
// struct, and reads a stored row back into a struct. Inside coordinator/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "coordinator/decide/words.h"

enum row_kind {     // what the struct is; in this order they are loaded
    ROW_META,       // struct coord
    ROW_JOB,        // struct job_record
    ROW_HOST,       // struct host
    ROW_FENCED,     // struct fenced
    ROW_CHECKPOINT, // struct checkpoint_record
    ROW_REQUEST,    // struct request
    ROW_NOTICE,     // struct notice
    ROW_EVENT,      // struct event_record
    ROW_AUDIT,      // struct audit_record
    ROW_KINDS
};

enum column_form {
    COLUMN_NUMBER,    // a bool, an int, an enum, a number of 64 bits
    COLUMN_REAL,      // a double; one that is no number is stored as null
    COLUMN_WORD,      // an enum, stored as its word
    COLUMN_CHARS,     // an array of characters
    COLUMN_TEXT,      // a text on the heap
    COLUMN_BORROWED,  // a text that the struct does not own
    COLUMN_FAILURES,  // of a job, "MS MS …"
    COLUMN_PLACEMENT, // of a job, a line a rank: "HOST INCARNATION DEVICE REAPED"
    COLUMN_BYTES,     // an array of bytes
    COLUMN_BLOB,      // bytes on the heap; the member behind the pointer says how many
};
struct column {
    const char *name;
    enum column_form form;
    size_t offset, size;      // of the member
    bool key;                 // one of those that name the row
    int limit;                // an enum's; greater numbers are damage; 0: none
    const char *(*word)(int); // of a WORD
};
struct row_table {
    const char *name;
    const struct column *columns;
    int ncolumns;
    const char *order; // SQL: how its rows are loaded; null: in any
    bool is_log;       // it is written only: nothing is loaded
    bool of_job;       // its first column is the job with which its rows go
};
extern const struct row_table row_tables[ROW_KINDS];

struct value { // of a column: `number`, `real`, or a text or bytes at `data`
    int64_t number;
    double real;
    const char *data; // a text has a zero behind it
    size_t len;
};
struct row {
    enum row_kind kind;
    bool erase;              // to be deleted, by its keys
    enum job_state replaces; // of a job: the state in the row that it replaces; JOB_NONE: no row
    struct value *values;    // [ncolumns]
};

// A snapshot of a struct of that kind. All of it is the arena's.
struct row row_make(enum row_kind kind, const void *record, struct arena *a);
// Sets the struct's members. ERR_DATA: the row is damaged. Borrowed texts are the row's.
int row_read(const struct row *r, void *record, struct err *e);

// Of a struct that is zeroed: its texts on the heap become "", for none is ever null.
void record_init(enum row_kind kind, void *record);
void record_clear(enum row_kind kind, void *record); // frees what its columns have on the heap

struct event_record { // one row of a job's history
    const char *job;
    uint64_t seq;
    int64_t t_ms;
    enum job_state state; // after it
    enum event_kind kind;
    int rank; // −1: none
    const char *host;
    int64_t step; // −1: none
    const char *text;
};
struct audit_record {
    uint64_t seq;
    int64_t t_ms;
    const char *who, *role;
    enum audit_verb verb;
    const char *target, *result;
};
// As clients get it. Its texts are borrowed.
void event_message(const struct event_record *e, Weft__V1__Event *out);
