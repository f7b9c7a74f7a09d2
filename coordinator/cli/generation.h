// SPDX-License-Identifier: Apache-2.0
// Texts that a checkpoint's model continues: which of them has which row of the program, how they end,
// and what of them may be shown. Inside coordinator/cli/ only.
//
// Texts take rows in their order, each as soon as one is free. A text is the same whatever it shares the
// program with: its draws hang on its number and on places in it (worker/rank/train/sampling.h).
#pragma once
#include "common/tokenizer/tokenizer.h"
#include "coordinator/cli/held_text.h"
#include "coordinator/cli/local_ranks.h"

enum { GENERATE_ROWS = 8, GENERATE_CHUNK = 64 }; // where --batch and --chunk say no others
enum { GENERATION_PROMPT = 1 << 21 }; // tokens that are put into one question: it is a frame

struct generated {
    const int32_t *prompt; // of nprompt tokens, at least one
    int64_t nprompt;       // at most GENERATION_PROMPT
    int64_t tokens;        // at most to add, at least one
    uint32_t request;      // its number: place in the input · samples + sample
    int64_t kept; // of the prompt: tokens that row 0 has of the text before, which continues
    // What it got.
    int32_t *ids;
    double *log_shares; // of each, if asked for
    int64_t n;
    int ids_cap, shares_cap;
    struct tokenizer_stream *stream;
    struct held_text text;
    const char *ended; // "length", "stop" or "not finite"; null: not yet
    int row;           // while it has one
    int64_t sent;      // tokens that its row has: the next run's may keep them
    bool begun;        // its prompt was shown
};
struct generation {
    struct local_ranks *ranks;
    int (*ask)(struct local_ranks *ranks, const Weft__Rank__Ask *question,
               const Weft__Rank__Answer **answer, struct err *e); // local_ranks_ask()
    const struct tokenizer *tokenizer;
    Weft__Rank__Ask how; // its settings; rows are filled in here
    int64_t rows;
    const char *const *stops;
    int nstops;
    const int32_t *stop_ids;
    int nstop_ids;
    // A text has grown, or ended. May be null; an error ends them all.
    int (*grown)(void *ctx, struct generated *g, struct err *e);
    void *ctx;
};

// Continues all texts to their ends. One that is longer than the context keeps nothing: ranks read its
// newest tokens from position 0 on. `a` gets what they get but their bytes, which generation_clear()
// frees.
int generation_run(const struct generation *g, struct generated *texts, int64_t n, struct arena *a,
                   struct err *e);
void generation_clear(struct generated *texts, int64_t n);
