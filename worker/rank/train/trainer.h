// SPDX-License-Identifier: Apache-2.0
// Inside worker/rank/train/ only. The trainer: everything that a rank holds while it trains.
// trainer.c opens and closes it, train.c runs the steps.
#pragma once
#include <stdatomic.h>

#include "common/plan/plan.h"
#include "worker/collective/choose_transport.h"
#include "worker/rank/exec/model_state.h"
#include "worker/rank/link/rank_link.h"
#include "worker/rank/save/saver.h"
#include "worker/rank/train/detail.h"
#include "worker/rank/train/device_use.h"
#include "worker/rank/train/evaluate.h"
#include "worker/rank/train/job_history.h"
#include "worker/rank/train/pace.h"
#include "worker/rank/train/sampling.h"
#include "worker/rank/train/train.h"

// What is copied between host and device each step, in memory that the device can reach.
struct words {
    float hyper[HYPER_SLOTS], control[CONTROL_SLOTS]; // to the device
    int32_t step;                                     // the same
    float metrics[]; // from the device, trainer.metrics_slots; then trainer.detail_slots to it
};

// Where the time of one step, or of several, went.
struct spent {
    int64_t step_ns;  // in all, without evaluations
    int64_t input_ns; // the device had nothing to do until samples were read
    int64_t
        communication_ns;  // computation stood still for collectives; −1: the device does not say
    int64_t checkpoint_ns; // the loop stood still for a save before it
};

// What the host keeps of a step until its metrics are looked at.
struct in_flight {
    struct step_row row;
    double *part_value; // of the row
    struct words *words;
    struct event *fed;  // the batch was copied: the feed may have its memory back
    struct event *done; // the metrics are in `words`
    bool reported;      // the row was sent
    bool last;          // of the attempt
    bool behind;        // the device was still at the step when all of it had been queued
    int64_t begun_ns;   // when the host began to queue it
    int64_t ended_ns;   // when it was seen to have ended; 0: not yet
    struct spent spent; // on it
};

struct trainer {
    const struct assignment *assignment;
    const struct job *job;
    struct link *link;
    struct arena arena;
    struct compiled compiled;
    struct device *device;
    int ordinal;                      // which of this host's devices it is
    bool runs_alone;                  // it works through a queue: the host can only wait for it
    struct exec_options exec_options; // backend, device and world are kept here only
    struct exec *exec;
    struct state state;
    struct dataset set;
    struct data_identity data; // of `set`
    struct sampler sampler;
    struct inputs inputs;
    struct feed *feed;
    struct evaluation evaluation;
    struct sampling sampling;
    struct tokenizer *tokenizer;    // data.tokenizer: of rank 0, and of who samples; else null
    struct job_history history;     // until now; the arena's
    int64_t updates;                // that the optimiser's state had had when this attempt began
    struct buf note;                // for the job's history: what was taken of another checkpoint
    struct manifest_source source;  // that training began with; the arena's
    struct buf algorithms;          // as agreed; empty where there is no choice
    char collectives[TRANSPORT_BY]; // what carries them (choose_transport.h); empty: one rank
    struct buf *texts;              // the samples of the newest evaluation
    const char **sample_text;       // the same, as the metrics row takes them
    int64_t logged_ns;              // when the log last said where the run stands
    bool evaluates, samples;
    struct saver *_Atomic saver; // on_lost looks at it
    struct metrics *metrics;     // rank 0
    void *hyper, *control, *metrics_device, *detail_device;
    int64_t metrics_slots;
    int64_t detail_slots;        // of these, at the end; 0: metrics.detail is not asked for
    struct detail *detail;       // null: the same
    struct row_part *parts;      // what a step's metrics hold from METRIC_PARTS on
    struct row_part *eval_parts; // what an evaluation's metrics hold after the loss
    int nparts, neval_parts;
    void *step; // null: the program draws no random numbers
    struct in_flight flight[2];
    struct pace pace;
    struct device_use use; // of rank 0
    int64_t ended_ns;      // when the newest step that ended was seen to have ended
    int64_t stalled_ns;    // how long the loop has stood still for saves since the last step began
    struct {               // since the newest row of metrics
        int64_t steps;
        double loss; // their sum
        struct spent spent;
    } since;
    int nonfinite;      // steps in a row whose loss or gradient was not finite
    int64_t dropped;    // of all steps
    bool stop, no_save; // of the newest control word looked at
    int64_t saves_skipped, rows_lost;
};

// `t` has its assignment, job and link, all else is zero. Opens the rest, restores or draws the
// state, and waits until all ranks have agreed on their plans. Close it after an error too.
int trainer_open(struct trainer *t, struct err *e);
void trainer_close(struct trainer *t);
