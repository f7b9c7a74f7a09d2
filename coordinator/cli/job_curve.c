// SPDX-License-Identifier: Apache-2.0
// A job's losses; see job_curve.h.
#include "coordinator/cli/job_curve.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/system.h"

void job_curve_init(struct job_curve *c)
{
    static const char *const keys[CURVE_KEYS] = {
        [CURVE_LOSS] = "loss",
        [CURVE_EVAL_LOSS] = "eval_loss",
        [CURVE_STEP_MS] = "step_ms",
        [CURVE_INPUT_MS] = "input_ms",
        [CURVE_COMPUTE_MS] = "compute_ms",
        [CURVE_COMMUNICATION_MS] = "communication_ms",
        [CURVE_CHECKPOINT_MS] = "checkpoint_ms",
        [CURVE_MFU] = "mfu",
        [CURVE_MEMORY] = "memory_bytes",
        [CURVE_PLANNED] = "memory_planned_bytes",
    };
    *c = (struct job_curve){0};
    rows_init(&c->rows, keys, CURVE_KEYS);
    for (int k = 0; k < CURVE_KEYS; k++)
        c->newest[k] = (double)NAN;
}

void job_curve_clear(struct job_curve *c)
{
    rows_clear(&c->rows);
    buf_clear(&c->tail);
    cli_link_close(&c->link);
}

static void add_point(struct job_curve *c, int64_t step, const double *value)
{
    if (step < 0)
        return;
    bounded_curve_add(&c->loss, step, value[CURVE_LOSS]);
    bounded_curve_add(&c->eval_loss, step, value[CURVE_EVAL_LOSS]);
    for (int k = 0; k < CURVE_KEYS; k++)
        c->newest[k] = value[k];
}

static double known(double v)
{
    return v >= 0 ? v : (double)NAN;
}

void job_curve_report(struct job_curve *c, uint64_t attempt, const Weft__Rank__StepReport *r)
{
    const double value[CURVE_KEYS] = {
        [CURVE_LOSS] = r->steps ? r->loss : (double)NAN,
        [CURVE_EVAL_LOSS] = r->evaluated ? r->eval_loss : (double)NAN,
        [CURVE_STEP_MS] = r->step_ms,
        [CURVE_INPUT_MS] = r->input_ms,
        [CURVE_COMPUTE_MS] = r->compute_ms,
        [CURVE_COMMUNICATION_MS] = known(r->communication_ms),
        [CURVE_CHECKPOINT_MS] = r->checkpoint_ms,
        [CURVE_MFU] = known(r->mfu),
        [CURVE_MEMORY] = (double)r->memory_bytes,
        [CURVE_PLANNED] = (double)r->memory_planned_bytes,
    };
    bool read = attempt < c->attempt || (attempt == c->attempt && r->step <= c->step);
    if (c->whole && !read) // else the file has it too, or will have it
        add_point(c, r->step, value);
}

// ---- what was written before ----

static void take_rows(struct job_curve *c)
{
    for (size_t i = 0; i < c->rows.n; i++) {
        add_point(c, c->rows.row[i].step, &c->rows.value[i * CURVE_KEYS]);
        c->step = c->rows.row[i].step;
        c->attempt = c->rows.row[i].attempt;
    }
    rows_forget(&c->rows);
}

static void end_reading(struct job_curve *c, bool failed)
{
    c->whole = true;
    c->ask.from = c->rows.at;
    buf_reset(&c->tail);
    c->whole_ns = clock_mono_ns();
    c->failed = failed;
    if (failed)
        cli_link_close(&c->link);
}

void job_curve_again(struct job_curve *c)
{
    c->once_more = !c->whole;
    c->whole = c->failed = false;
}

static void read_file(struct job_curve *c, const char *store)
{
    int file = -1, folder = *store ? open(store, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    bool failed =
        folder < 0 || rows_open(folder, &file, NULL) || file < 0 || rows_read(&c->rows, file, NULL);
    take_rows(c);
    system_close(&file);
    system_close(&folder);
    end_reading(c, failed);
}

static void take_piece(struct job_curve *c, const Weft__V1__RowsReply *piece)
{
    if (!piece->text.len) { // the file ends there, or in a line that is being written
        end_reading(c, false);
        c->whole = !c->once_more;
        c->once_more = false;
        return;
    }
    struct buf *tail = &c->tail;
    buf_append(tail, piece->text.data, piece->text.len);
    size_t taken = rows_add_lines(&c->rows, tail->data, tail->len);
    take_rows(c);
    tail->len -= taken;
    memmove(tail->data, tail->data + taken, tail->len);
    if (tail->len >= ROW_BYTES_MAX) { // no row is so long: it is passed over
        c->rows.at += (int64_t)tail->len;
        buf_reset(tail);
    }
    c->ask.from = c->rows.at + (int64_t)tail->len;
}

// Waits for one event of the call.
static void read_on(struct job_curve *c, int64_t for_ns)
{
    ProtobufCMessage *m;
    enum rpc_code code;
    char text[RPC_TEXT_MAX];
    switch (cli_link_stream_next(&c->stream, &c->ask.base, false, for_ns, &m, &code, text)) {
    case LINK_MESSAGE:
        take_piece(c, (const Weft__V1__RowsReply *)(const void *)m);
        cli_link_free(m);
        break;
    case LINK_AWAY:
    case LINK_FAILED:
        end_reading(c, true);
        break;
    case LINK_END: // the next piece is asked for
    case LINK_NOTHING:
        break;
    }
}

bool job_curve_read(struct job_curve *c, const struct cli_link *of, const char *job,
                    const char *store, int64_t for_ns)
{
    struct err e = {0};
    int64_t at = c->rows.at, now, until = clock_mono_ns() + for_ns;
    if (c->whole)
        return false;
    if (of->stored || of->own) { // the folder is on this machine
        read_file(c, store);
        return of->stored || c->rows.at > at;
    }
    if (!c->link.rpc) {
        weft__v1__rows_request__init(&c->ask);
        c->ask.from = at;
        if (cli_link_dial(&c->link, of->verb, of->address, of->tls, &e)) {
            end_reading(c, true);
            return false;
        }
        c->ask.job = arena_strdup(&c->link.arena, job);
        c->stream = (struct cli_link_stream){.link = &c->link, .method = LINK_ROWS};
    }
    while (!c->whole && (now = clock_mono_ns()) < until)
        read_on(c, until - now);
    return c->rows.at > at;
}

// ---- the picture ----

void job_curve_draw(const struct job_curve *c, const struct chart_text *t, struct buf *out)
{
    const struct bounded_curve *const from[] = {&c->loss, &c->eval_loss};
    static const char *const names[] = {"loss", "eval_loss"};
    struct chart chart = {.x_name = "step"};
    struct arena a = {0};
    size_t most = 0; // a curve has two points
    for (int i = 0; i < 2; i++) {
        double *x = arena_array(&a, double, BOUNDED_POINTS);
        double *y = arena_array(&a, double, BOUNDED_POINTS);
        size_t n = bounded_curve_points(from[i], x, y);
        most = n > most ? n : most;
        if (n)
            chart.curve[chart.ncurves++] = (struct curve){names[i], x, y, n};
    }
    if (most > 1)
        chart_braille(&chart, t, out);
    arena_clear(&a);
}
