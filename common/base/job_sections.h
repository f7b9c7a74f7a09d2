// SPDX-License-Identifier: Apache-2.0
// The sections of a job that belong to common/data and common/ckpt, whose schema rows lie there.
// Both rooms stand beside common/job and must not include it. Plain data; struct job holds them.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/schema.h"

enum job_data_format { JOB_DATA_IDX, JOB_DATA_NPY, JOB_DATA_TOKENS };
enum job_data_dtype { JOB_DATA_U8, JOB_DATA_F32 };
enum job_data_ids { JOB_DATA_AUTO, JOB_DATA_U16, JOB_DATA_U32 };

struct job_data_files {          // paths as the job file gives them; job_path() resolves them
    const char *images, *labels; // both null: this set is not given
    const char *tokens;          // of format tokens, in their place
};

struct job_data {
    int format;            // enum job_data_format
    int dtype;             // enum job_data_dtype: of the images, so that a plan opens no file
    int ids;               // enum job_data_ids: of raw token files
    const char *tokenizer; // bytes, ids, or a path as given; job_tokenizer() resolves it
    struct job_data_files train, eval;
    int64_t batch; // samples a step, over all ranks and microbatches; evaluation uses the same
    int64_t batch_per_device; // of a job file, which gives no batch; 0 once it is read
};

enum job_best { JOB_BEST_NONE, JOB_BEST_EVAL_LOSS };

enum { JOB_RENAME_STARS = 8 }; // of a pattern, at most
struct job_rename {            // of tensors of a checkpoint; a * is any text
    const char *from, *to;
};
struct job_load {              // what is taken of checkpoint.from
    struct schema_list params; // const char *: globs over this job's parameters
    struct schema_list rename; // struct job_rename: the first that matches acts
    bool optimizer;            // its state too
    bool step;                 // and its count of steps
};

struct job_checkpoint {
    int64_t every;      // steps; 0: only after the last step
    bool first;         // one before the first step too
    int64_t keep;       // newest ones kept
    int64_t keep_every; // steps that this divides stay for ever; 0: none
    int best;           // enum job_best: and which one more
    const char *dir;    // as given; job_path() resolves it
    const char *from;   // whose parameters training begins with; null: none's
    struct job_load load;
    bool async;       // written from staging while training continues
    int64_t patience; // ns that saves may fail before training stops
};
