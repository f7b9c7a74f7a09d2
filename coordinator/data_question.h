// SPDX-License-Identifier: Apache-2.0
// The question to workers whether a job's data is there and its checkpoints may be where it wants
// them (STORAGE_LOOK), and what an answer says. Pure. Inside coordinator/ only.
#pragma once
#include "common/base/buf.h"
#include "common/job/job.h"
#include "coordinator/job_paths.h"
#include "proto/weft.pb-c.h"

enum { QUESTION_PATHS = DATA_PATHS + 1 };         // the data, then checkpoint.dir
enum { QUESTION_UNKNOWN = 1u << QUESTION_PATHS }; // of an answer: it does not tell
struct data_question {
    struct data_path paths[QUESTION_PATHS]; // borrowed
    int ndata;                              // of these are data, and paths[ndata] is the last
    bool literal; // none of them is a pattern: only files of tokens may be many
};
struct data_answer {
    unsigned lacks;                  // a bit a path that is not there
    const char *why[QUESTION_PATHS]; // borrowed, a host's own words; null: the path is not lacking
};

void data_question_init(struct data_question *q, const struct job *job);
// Fills in the message. `id` names the question: workers do one act of a name at a time. `paths` is
// room for what the message borrows.
void data_question_message(const struct data_question *q, const char *id, uint64_t number,
                           char *paths[DATA_PATHS], Weft__V1__Storage *out);
// PRE: `d` is ok.
void data_answer_read(const struct data_question *q, const Weft__V1__StorageDone *d,
                      struct data_answer *out);
// Appends "data.train.images: x cannot be opened on ", "; " before it where something stands there.
void data_question_print(const struct data_question *q, int path, struct buf *to);
