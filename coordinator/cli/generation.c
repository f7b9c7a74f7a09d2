// SPDX-License-Identifier: Apache-2.0
// Texts that a checkpoint's model continues. See generation.h.
#include "coordinator/cli/generation.h"

#include <math.h>

#include "common/attempt/frame.h"

struct round {                    // of one question
    struct generated **of_row;    // the text that has it, or null
    Weft__Rank__Row *row, **rows; // the question's, of which there are `n`
    struct generated **asked;     // the text of each
    int64_t n, tokens;            // of the question
    struct arena *arena;
};

static void add_question(struct round *r, struct generated *t, const int32_t *ids, int64_t n,
                         bool begins)
{
    Weft__Rank__Row *row = &r->row[r->n];
    weft__rank__row__init(row);
    row->row = t->row;
    row->begins = begins;
    row->request = t->request;
    row->ids = frame_borrow(ids);
    row->n_ids = (size_t)n;
    r->tokens += n;
    t->sent += n;
    r->rows[r->n] = row;
    r->asked[r->n++] = t;
}

static bool is_stop_id(const struct generation *g, int32_t id)
{
    for (int i = 0; i < g->nstop_ids; i++)
        if (g->stop_ids[i] == id)
            return true;
    return false;
}

// Adds what the decoder has held back.
static void end_text(struct generated *t)
{
    struct buf piece = {0};
    tokenizer_stream_end(t->stream, &piece);
    if (held_add(&t->text, buf_str(&piece), piece.len))
        t->ended = "stop";
    buf_clear(&piece);
}

// What the token of a text means to it.
static void take_token(const struct generation *g, struct generated *t, int32_t id,
                       double log_share, struct arena *a)
{
    struct buf piece = {0};
    if (id < 0 || is_stop_id(g, id)) {
        t->ended = id < 0 ? "not finite" : "stop";
        t->sent = id < 0 ? 0 : t->sent; // its keys may be no numbers
        end_text(t);
        return;
    }
    t->ids = arena_grow(a, t->ids, sizeof *t->ids, (int)t->n, &t->ids_cap);
    t->ids[t->n] = id;
    if (g->how.log_shares) {
        t->log_shares =
            arena_grow(a, t->log_shares, sizeof *t->log_shares, (int)t->n, &t->shares_cap);
        t->log_shares[t->n] = log_share;
    }
    t->n++;
    tokenizer_stream_put(t->stream, id, &piece);
    if (held_add(&t->text, buf_str(&piece), piece.len)) {
        t->ended = "stop";
    } else if (t->n == t->tokens) {
        t->ended = "length";
        end_text(t);
    }
    buf_clear(&piece);
}

static int ask(const struct generation *g, struct round *r, struct err *e)
{
    const Weft__Rank__Answer *answer;
    Weft__Rank__Ask question = g->how;
    question.rows = r->rows;
    question.n_rows = (size_t)r->n;
    int rc = g->ask(g->ranks, &question, &answer, e);
    if (!rc && (answer->n_ids != (size_t)r->n || answer->n_rows != answer->n_ids ||
                (question.log_shares && answer->n_log_shares != answer->n_ids)))
        rc = err_set(e, ERR_INTERNAL, "%zu tokens for %lld texts", answer->n_ids, (long long)r->n);
    for (int64_t i = 0; i < r->n && !rc; i++) {
        const int32_t at = answer->rows[i];
        struct generated *t = at >= 0 && at < r->n ? r->asked[at] : NULL;
        if (!t)
            return err_set(e, ERR_INTERNAL, "a token for text %d of %lld", at, (long long)r->n);
        r->asked[at] = NULL;
        take_token(g, t, answer->ids[i], question.log_shares ? answer->log_shares[i] : 0, r->arena);
        if (t->ended) {
            r->of_row[t->row] = NULL;
            tokenizer_stream_free(t->stream);
            t->stream = NULL;
        }
        if (g->grown)
            rc = g->grown(g->ctx, t, e);
    }
    return rc;
}

int generation_run(const struct generation *g, struct generated *texts, int64_t n, struct arena *a,
                   struct err *e)
{
    struct round r = {.of_row = arena_array(a, struct generated *, g->rows),
                      .row = arena_array(a, Weft__Rank__Row, g->rows),
                      .rows = arena_array(a, Weft__Rank__Row *, g->rows),
                      .asked = arena_array(a, struct generated *, g->rows),
                      .arena = a};
    int64_t begun = 0, last = 0;
    int rc = 0;
    do {
        r.n = r.tokens = 0;
        for (int64_t k = 0; k < g->rows; k++) {
            struct generated *t = r.of_row[k];
            if (t) {
                add_question(&r, t, &t->ids[t->n - 1], 1, false);
            } else if (begun < n &&
                       r.tokens + texts[begun].nprompt <= GENERATION_PROMPT + g->rows) {
                t = r.of_row[k] = &texts[begun++];
                t->row = (int)k;
                t->stream = tokenizer_stream_new(g->tokenizer, true);
                t->text.stops = g->stops;
                t->text.nstops = g->nstops;
                t->kept = t->nprompt <= g->how.context ? t->kept : 0;
                t->sent = t->kept;
                add_question(&r, t, t->prompt + t->kept, t->nprompt - t->kept, !t->kept);
            }
        }
        last = r.n;
        if (last)
            rc = ask(g, &r, e);
    } while (!rc && last);
    return rc;
}

void generation_clear(struct generated *texts, int64_t n)
{
    for (int64_t i = 0; texts && i < n; i++) {
        tokenizer_stream_free(texts[i].stream);
        held_clear(&texts[i].text);
    }
}
