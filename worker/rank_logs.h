// SPDX-License-Identifier: Apache-2.0
// What ranks print: files of bounded size that rotate, their tails, and people who follow them.
// Inside worker/, and for the client about a `weft run` that is over.
//
//   JOBS/<job>.a<attempt>/rank-0003.log    the newest lines: at most LOG_FILE_MAX bytes
//                       rank-0003.log.7  the LOG_FILE_MAX before; it is the seventh that was full,
//                                        and those before it are gone
//
// So every byte of a rank's log of an attempt has a position, counted from the log's beginning, which
// the names and sizes of the files show. Whoever reads a log twice knows by it what is new, and what
// was left out.
//
// Tails are read from the files, of all attempts or of one: a log at a time, and only when there is
// room on the way, however many ranks and readers there are. A follower gets what is appended from
// then on, in whole lines, over any number of attempts; where it comes faster than it can be sent it
// is left out, and the positions of what comes next show how much. All of it happens on the loop's
// thread: the files are small and local.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/weft.pb-c.h"

enum {
    LOG_FILE_MAX = 4 << 20,  // bytes, then it is rotated
    LOG_TAIL_MAX = 1 << 20,  // of an answer, a rank
    LOG_LAST_MAX = 16 << 10, // of the last lines before a rank's end
    LOG_LAST_LINES = 100,
    LOG_JOBS_KEPT = 200, // folders; the oldest go
};

struct log_file {
    int fd; // −1: cannot be written; what is printed is then lost
    char path[4400];
    int64_t size;
    int64_t full; // files before this one
    uint64_t attempt;
    struct buf line; // of an unfinished line: followers get whole ones
};
// Opens (continues) JOBS/<job>.a<attempt>/rank-RRRR.log, made as needed.
int log_file_open(struct log_file *f, const char *jobs, const char *job, uint64_t attempt, int rank,
                  struct err *e);
// Returns how many bytes the log now has; what a full disk does not take is lost.
size_t log_file_append(struct log_file *f, const char *text, size_t len);
void log_file_close(struct log_file *f);
// The last `lines` (0: all) of what is kept, at most `max` bytes, whole lines. Returns the position
// behind them.
int64_t log_tail(const char *path, int lines, size_t max, struct buf *out);
// Removes the oldest jobs' folders beyond LOG_JOBS_KEPT.
void log_trim(const char *jobs);

struct logs;
struct logs_ops {
    void *ctx;
    void (*say)(void *ctx, const Weft__V1__LogChunk *chunk);
    bool (*lags)(void *ctx); // what was said has not gone yet: it takes no more
};
struct logs *logs_new(const char *jobs, const struct logs_ops *ops);
void logs_free(struct logs *l); // null is fine
void logs_ask(struct logs *l, const Weft__V1__LogAsk *ask);
bool logs_waiting(const struct logs *l); // logs_resume() has something left to send
void logs_resume(struct logs *l);        // a turn's worth of it
// A rank's log now ends with `text`: followers get the whole lines of it.
void logs_appended(struct logs *l, const char *job, int rank, struct log_file *f, const char *text,
                   size_t len);
void logs_flush(struct logs *l, const char *job, int rank, struct log_file *f); // no more comes
void logs_drop_all(struct logs *l); // whoever asked is gone
