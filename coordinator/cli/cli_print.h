// SPDX-License-Identifier: Apache-2.0
// What the client's output is made of: tables, numbers for people, and the pieces of --json that
// several verbs share. Everything goes into a struct buf; the verb writes it.
// Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/json.h"
#include "proto/weft.pb-c.h"

// ---- tables ----
enum { TABLE_COLUMNS = 12 };
struct table {
    struct arena arena;
    int columns, n, cap; // n cells so far, those of the head first
    const char **cells;
    bool right[TABLE_COLUMNS];
    // Names of columns, the least important first, or null. With it no row is longer than a line of the
    // terminal, if there is one: the last column is shortened, then these go, then the widest are cut.
    const char *drop;
};
// `head` is a list of words, one a column; a column whose word begins with '>' is aligned right.
void table_init(struct table *t, const char *head);
void table_add(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(struct table *t, struct buf *out); // clears it too
// The columns of standard output's terminal; 0: it is none, or a dumb one.
int screen_columns(void);
int screen_lines(void);    // the same
bool screen_colours(void); // it shows colours, and NO_COLOR is not set

// ---- words for people; each returns `out` ----
enum { WORD_MAX = 48 };
const char *word_duration(double seconds, char out[WORD_MAX]); // "0.4s", "12s", "3m05s", "2h10m"
const char *word_rate(double value, char out[WORD_MAX]);       // "812", "12.3k", "1.20M"
const char *word_bytes(int64_t bytes, char out[WORD_MAX]);     // "512 B", "1.5 GiB"
const char *word_time(int64_t t_ms, char out[WORD_MAX]);       // local, "2026-11-21 13:00:02.125"
const char *word_state(Weft__V1__JobState s);                  // "RUNNING", or "UNKNOWN"
const char *word_checkpoint(int state);                        // "COMMITTED", or "UNKNOWN"

// A line of both, and below it what `text` says in further lines, indented: no text from outside can
// begin a line and look like one of ours.
void print_lines(struct buf *out, const char *before, const char *text);
// A line with the threads of a device and how their number came about, after `before`; nothing
// where there is nothing to say.
void print_threads(const Weft__V1__JobStatus *s, const char *before, struct buf *out);

// A word for a shell: in quotes where the shell would take it for more than a word, or where `quote` says so.
void print_word(struct buf *out, const char *word, bool quote);

// The exit code of a verb that waits for a job in this state; -1 if the job continues.
int job_ended(Weft__V1__JobState s);

// ---- JSON ----
void json_print_start(struct json_out *w, struct buf *out, bool pretty);
void json_print_end(struct json_out *w); // adds "nonfinite" if there are any, and a newline
void json_text(struct json_out *w, const char *key, const char *text); // "" becomes null
void json_count(struct json_out *w, const char *key, int64_t value); // a negative one becomes null

void put_out(struct buf *out); // writes to standard output, flushes, clears
