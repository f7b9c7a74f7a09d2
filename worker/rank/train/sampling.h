// SPDX-License-Identifier: Apache-2.0
// Texts that a decoder continues: the samples after an evaluation, and what `weft generate` asks for.
// Inside worker/rank/train/ only.
//
// A row of a program is one text. Where there are FILL and STEP, a call computes the tokens that texts
// have got since the call before, of each so many or none, and finds the keys of those before them in
// caches (graph/cached_keys.h). Else the sample program runs once for each token of all rows, over a window
// of model.seq tokens: a token costs a forward pass over the whole window; only the head runs at one
// position. When a text has filled its window, the newest three quarters of it are read from position 0
// on, and it grows from there.
//
// A rank has the logits of some texts, and chooses for itself (choice.h), with draws that depend only on
// the seed, the text's number and the token's place in it. So ranks that have the same texts continue
// them alike, whatever else they continue meanwhile, on any mesh, and a resumed run gives the same
// samples again. In a training every rank has the logits of all texts. Of those that it is asked for it
// has what the batch's cut gives it: what others chose comes with the next question.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/job/job.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/rank/train/choice.h"
#include "worker/rank/train/inputs.h"

struct text_row {
    bool spoilt; // a logit was not finite: so may be its keys
    int32_t *ids;
    int64_t n, cap;
    int64_t from;   // where its window begins
    int64_t cached; // tokens from there on whose keys are in the caches
};
// A program that gives logits.
struct sampling_way {
    enum program_kind kind;
    struct dataset shape; // says what it reads of a text; it has no file
    struct inputs inputs;
    const void *logits; // on the device
};
struct sampling {
    struct exec *exec; // borrowed
    const struct backend *backend;
    const struct program *program; // FILL, which has the caches; null: there is none
    const struct job *job;
    struct progress_page *page;
    struct arena arena;
    struct sampling_way way[2]; // SAMPLE; or FILL and STEP
    int nways;
    int64_t rows, padded;              // texts, and how many logits each has
    int64_t first, mine;               // the texts of which this rank has logits
    bool answers;                      // for these: the first of the ranks that have them
    int64_t context;                   // tokens of a window at most: model.seq, or fewer
    float *host;                       // logits of each of these rows, on the host
    float *got, *penalised;            // those of a call; one row's, for choice_token()
    struct text_row *text;             // of each row
    int32_t *last;                     // of each text of this rank: the position of its last token
    int32_t *positions;                // of this rank's texts: those of the tokens of a call
    int32_t *scratch;                  // choice_token()'s
    const struct tokenizer *tokenizer; // borrowed; of the prompt. Null: there is none
    struct token_ids prompt;
    int64_t done; // tokens that the job's samples have
};

// What a token is chosen by; the rest of struct choice is the row's.
struct sampling_how {
    double temperature, top_p, min_p, penalty; // as in choice.h
    int64_t top_k;
    uint64_t seed;
    uint32_t request; // the text's number: its draws
};

// `t` (borrowed) is of the job's prompt; null: the job's own samples are not made. A zeroed struct may be
// closed.
int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, const struct tokenizer *t, struct err *e);
void sampling_close(struct sampling *s);

// ---- rows: every rank does the same with them ----
// The row's text begins with the tokens that are appended next. Of a text whose logits were not finite, or
// were another rank's, it clears the keys: what attention multiplies by 0 must be a number.
int sampling_begin(struct sampling *s, int64_t row, struct err *e);
void sampling_append(struct sampling *s, int64_t row, const int32_t *ids, int64_t n);
// Computes the logits that follow each row's text. A row without one is idle.
int sampling_run(struct sampling *s, struct err *e);
// Whether this rank has a row's logits.
bool sampling_has(const struct sampling *s, int64_t row);
// The token that follows the text of a row that this rank has, after sampling_run; it is not appended. −1: a
// logit is not finite. log_share (may be null): choice_log_share of it.
int32_t sampling_choose(struct sampling *s, int64_t row, const struct sampling_how *how,
                        double *log_share);

// ---- the job's samples ----
// Makes new ones. Logits that are not finite end all samples early, which is no error: `done` says how
// many tokens they have.
int sampling_take(struct sampling *s, struct err *e);
// Appends what sample `k` added to the prompt, as people are shown it.
void sampling_text(const struct sampling *s, int64_t k, struct buf *text);
