// SPDX-License-Identifier: Apache-2.0
// A file of TensorBoard's events: records that hold one Event each, in the encoding of protocol buffers.
// One file takes all attempts of a job, so that whoever reads files one by one sees one curve.
//
//   record   u64 length · u32 masked CRC32C of it · the event · u32 masked CRC32C of that   little endian
//   event    field 1 its time · 2 its step · and one of: 3 the version · 5 a summary · 7 a session's start
//
// event_file_open → event_begin, event_…, event_end for each event → event_file_write → event_file_sync
//
// Events are gathered in memory, and event_file_write puts them into the file with one write. What a
// power loss or a full disk left half-written is cut off where the file is opened or written next.
// Inside worker/sinks/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct event_file {
    int fd;
    int64_t end;                     // of the last whole record
    bool continues;                  // it held events when it was opened
    struct buf gathered;             // whole records, not yet in the file
    struct buf event;                // the one that is being made
    struct buf summary, value, part; // of it, and room for what lies in them
};

// Makes the file with its first record if it is not there; `path` starts at `folder`, which may be
// AT_FDCWD, and a link is refused. On failure there is nothing to close.
int event_file_open(int folder, const char *path, struct event_file *f, struct err *e);
// Nothing of what was gathered is in the file after a failure; it stays gathered.
int event_file_write(struct event_file *f, struct err *e);
int event_file_sync(struct event_file *f, struct err *e);
void event_file_close(struct event_file *f);

void event_begin(struct event_file *f, double wall_s, int64_t step);
void event_end(struct event_file *f);
// Of one summary, as many as there are:
void event_scalar(struct event_file *f, const char *tag, double value);
void event_text(struct event_file *f, const char *tag, const char *text);
void event_histogram(struct event_file *f, const char *tag, double *values, int n); // sorts them
// Readers drop the events before this one whose step is the same or greater. The event holds nothing else.
void event_session_start(struct event_file *f);

// A job's settings, as the plugin of hyperparameters shows them: one summary of its own.
struct event_setting {
    const char *name;
    const char *text; // null: it is `number`, or with is_bool, whether that is not 0
    double number;
    bool is_bool;
};
void event_settings(struct event_file *f, const struct event_setting *settings, int n,
                    double started_s);

uint32_t event_crc32c(const void *data, size_t len);
