// SPDX-License-Identifier: Apache-2.0
// A job's losses from its first step on, for a picture beside its stream: the rows that were written, piece
// by piece over a connection of their own, and until they come again the reports of the stream, which
// leaves out steps that follow fast. Its memory is bounded.
// Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"
#include "common/metrics/bounded_curve.h"
#include "common/metrics/chart.h"
#include "common/metrics/rows.h"
#include "coordinator/cli/cli_link.h"

// What of the newest row or report is shown beside the curves.
enum curve_key {
    CURVE_LOSS,
    CURVE_EVAL_LOSS,
    CURVE_STEP_MS,
    CURVE_INPUT_MS,
    CURVE_COMPUTE_MS,
    CURVE_COMMUNICATION_MS,
    CURVE_CHECKPOINT_MS,
    CURVE_MFU,
    CURVE_MEMORY,
    CURVE_PLANNED,
    CURVE_KEYS
};
struct job_curve {
    struct bounded_curve loss, eval_loss;
    double newest[CURVE_KEYS]; // NaN: not known
    bool whole;                // nothing is left to read for now
    bool failed;               // then: it could not be read
    bool once_more;            // the answer under way may be older than what is to be read
    int64_t whole_ns;          // since when
    int64_t step;              // of the last row that was read
    uint64_t attempt;          // and its attempt
    struct rows rows;          // those of one piece
    struct buf tail;           // behind the last whole line of what came
    struct cli_link link;
    struct cli_link_stream stream;
    Weft__V1__RowsRequest ask;
};

void job_curve_init(struct job_curve *c);
// Reads on in what a job that `of` leads to has written, for so long at most; `store` is its folder, for
// a `weft run`, under way or not. Returns whether anything came. What cannot be read is left out.
bool job_curve_read(struct job_curve *c, const struct cli_link *of, const char *job,
                    const char *store, int64_t for_ns);
// There may be more to read.
void job_curve_again(struct job_curve *c);
void job_curve_report(struct job_curve *c, uint64_t attempt, const Weft__Rank__StepReport *r);
// Appends nothing before there are two points.
void job_curve_draw(const struct job_curve *c, const struct chart_text *t, struct buf *out);
void job_curve_clear(struct job_curve *c);
