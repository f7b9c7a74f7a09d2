// SPDX-License-Identifier: Apache-2.0
// Questions about a job's paths; see data_question.h.
#include "coordinator/data_question.h"

#include "common/attempt/frame.h"
#include "common/data/pattern.h"

void data_question_init(struct data_question *q, const struct job *job)
{
    *q = (struct data_question){.literal = job->data.format != JOB_DATA_TOKENS};
    q->ndata = job_data_paths(job, q->paths);
    q->paths[q->ndata] = (struct data_path){"checkpoint.dir", job->checkpoint.dir};
}

void data_question_message(const struct data_question *q, const char *id, uint64_t number,
                           char *paths[DATA_PATHS], Weft__V1__Storage *out)
{
    weft__v1__storage__init(out);
    out->op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    out->job = frame_text(id);
    out->epoch = number;
    for (int i = 0; i < q->ndata; i++)
        paths[i] = frame_text(q->paths[i].path);
    out->paths = paths;
    out->n_paths = (size_t)q->ndata;
    out->dir = frame_text(q->paths[q->ndata].path);
    out->literal = q->literal;
}

void data_answer_read(const struct data_question *q, const Weft__V1__StorageDone *d,
                      struct data_answer *out)
{
    *out = (struct data_answer){0};
    for (size_t i = 0; i < d->n_missing; i++) {
        int path = d->missing[i];
        if (path < 0 || path > q->ndata)
            continue;
        out->lacks |= 1u << path;
        out->why[path] = i < d->n_missing_why ? d->missing_why[i] : "";
    }
}

void data_question_print(const struct data_question *q, int path, struct buf *to)
{
    buf_printf(to, "%s%s: %.300s %s ", to->len ? "; " : "", q->paths[path].key, q->paths[path].path,
               path < q->ndata ? "cannot be opened on" : "leaves the --checkpoint-root of");
}
