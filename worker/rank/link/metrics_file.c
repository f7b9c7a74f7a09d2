// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl. See metrics_file.h.
#include "worker/rank/link/metrics_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/ckpt/durable.h"

struct metrics {
    int fd;
    bool torn;        // half a row stands at the end of the file: the next row begins on a new line
    bool away;        // somebody removed the file, and it could not be put back yet
    int64_t again_ns; // while it is away: when to try next to put it back
    int64_t pause_ns; // while it is away: how long to wait after that
    char path[4096];
    uint64_t attempt;
    struct buf line;
    struct json_out json;
};

// The pause between two tries to put the file back, each of which copies all of it. Each pause is
// twice as long as the one before.
#define FIRST_PAUSE_NS (1 * CLOCK_S)
#define LAST_PAUSE_NS  (64 * CLOCK_S)

// How much of it was written; where that is not all, errno says why.
static size_t write_all(int fd, const char *data, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(fd, data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        done += (size_t)n;
    }
    return done;
}

// Half a row at the end is of a process that was killed, or of a disk that was full. It stays, since
// somebody who follows the file may have read it.
static int look_for_half_row(struct metrics *m, struct err *e)
{
    struct stat st;
    char last = '\n';
    if (fstat(m->fd, &st))
        return err_errno(e, ERR_IO, "cannot read %s", m->path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s is not a file: rows of metrics cannot be written there",
                       m->path);
    if (st.st_size && pread(m->fd, &last, 1, st.st_size - 1) != 1)
        return err_errno(e, ERR_IO, "cannot read %s", m->path);
    m->torn = last != '\n';
    if (m->torn)
        log_warn("metrics", "%s: its last row is not whole and is left out", m->path);
    return 0;
}

int metrics_open(const char *path, uint64_t attempt, struct metrics **out, struct err *e)
{
    struct metrics *m = heap_alloc(sizeof *m);
    *m = (struct metrics){.attempt = attempt};
    bool fits = (size_t)snprintf(m->path, sizeof m->path, "%s", path) < sizeof m->path;
    m->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    int rc = m->fd < 0 ? err_errno(e, ERR_IO, "cannot open %s", path) : look_for_half_row(m, e);
    if (!fits)
        rc = err_set(e, ERR_LIMIT, "the path %s is too long", path);
    if (rc) {
        system_close(&m->fd);
        free(m);
        return rc;
    }
    *out = m;
    return 0;
}

// One number, or a list of several.
static void put_part(struct json_out *w, const char *key, const double *value, int64_t n)
{
    if (n == 1) {
        json_double(w, key, value[0]);
        return;
    }
    json_array(w, key);
    for (int64_t i = 0; i < n; i++)
        json_double(w, NULL, value[i]);
    json_end(w);
}

// How many parts have the name of part i; 0: so has an earlier part, with which all were written.
static int count_parts_of_name(const struct row_parts *parts, int i)
{
    int alike = 0;
    for (int k = 0; k < parts->n; k++) {
        if (strcmp(parts->part[k].name, parts->part[i].name) != 0)
            continue;
        if (k < i)
            return 0;
        alike++;
    }
    return alike;
}

// Writes the parts under prefix and name: "kl", or "eval_kl". eval_accuracy is left out here, because
// every row of an evaluation has it, also where the model has none.
static void put_parts(struct json_out *w, const struct row_parts *parts, const char *prefix)
{
    const double *value = parts->value;
    for (int i = 0; value && i < parts->n; value += parts->part[i++].count) {
        char key[64];
        int alike = count_parts_of_name(parts, i);
        const double *at = value;
        snprintf(key, sizeof key, "%s%s", prefix, parts->part[i].name);
        if (strcmp(key, "eval_accuracy") == 0)
            continue;
        if (alike == 1)
            put_part(w, key, value, parts->part[i].count);
        if (alike < 2)
            continue;
        json_array(w, key);
        for (int k = i; k < parts->n; at += parts->part[k++].count)
            if (strcmp(parts->part[k].name, parts->part[i].name) == 0)
                put_part(w, NULL, at, parts->part[k].count);
        json_end(w);
    }
}

// ---- a file that somebody removed ----

static int copy_all(int from, int to)
{
    char piece[1 << 16];
    for (off_t at = 0;;) {
        ssize_t n = pread(from, piece, sizeof piece, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || write_all(to, piece, (size_t)n) < (size_t)n)
            return -1;
        if (n == 0)
            return 0;
        at += n;
    }
}

// Makes the file again with all its rows, which the open descriptor still holds. It never replaces a
// file that is there: that is a newer attempt's, and this process is a zombie.
static int put_back(struct metrics *m)
{
    char tmp[sizeof m->path + 8];
    snprintf(tmp, sizeof tmp, "%s.again", m->path);
    (void)unlink(tmp);
    int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    int rc = copy_all(m->fd, fd);
    if (!rc)
        rc = durable_rename_new(AT_FDCWD, tmp, m->path, NULL);
    if (rc) {
        int why = errno;
        (void)unlink(tmp);
        close(fd);
        errno = why;
        return -1;
    }
    close(m->fd);
    m->fd = fd;
    return 0;
}

static void put_off(struct metrics *m)
{
    m->again_ns = clock_mono_ns() + m->pause_ns;
    m->pause_ns = m->pause_ns < LAST_PAUSE_NS ? 2 * m->pause_ns : LAST_PAUSE_NS;
}

static void look_for_file(struct metrics *m, bool last)
{
    struct stat held, there;
    bool removed = !fstat(m->fd, &held) && held.st_nlink == 0;
    if (!removed || !stat(m->path, &there) || (m->away && !last && clock_mono_ns() < m->again_ns))
        return;
    if (!m->away)
        m->pause_ns = FIRST_PAUSE_NS;
    if (!put_back(m)) {
        log_warn("metrics", "somebody removed %s: it is made again, with all of its rows", m->path);
        m->away = false;
        return;
    }
    if (!m->away)
        log_warn("metrics", "somebody removed %s: its rows are held until it can be made again: %s",
                 m->path, strerror(errno));
    m->away = true;
    put_off(m);
}

const char *row_speed_text(const struct step_row *row, char out[40])
{
    bool tokens = row->tokens_per_s > 0;
    double speed = tokens ? row->tokens_per_s : row->samples_per_s;
    if (row->mean_ms > 0)
        speed *= row->step_ms / row->mean_ms;
    snprintf(out, 40, speed >= 10 ? "%.0f %s/s" : "%.3g %s/s", speed,
             tokens ? "tokens" : "samples");
    return out;
}

static void put_detail(struct json_out *w, const struct row_detail *d)
{
    json_object(w, "detail");
    json_int(w, "step", d->step);
    json_object(w, "groups");
    for (int i = 0; i < d->n; i++) {
        json_object(w, d->group[i].name);
        json_double(w, "weight_norm", d->group[i].weight_norm);
        json_double(w, "update_norm", d->group[i].update_norm);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

static void put_evaluation(struct json_out *w, const struct step_row *row)
{
    json_double(w, "eval_loss", row->eval_loss);
    json_known_double(w, "eval_accuracy", !isnan(row->eval_accuracy), row->eval_accuracy);
    put_parts(w, &row->eval_parts, "eval_");
    if (!row->nsamples)
        return;
    json_array(w, "samples");
    for (int k = 0; k < row->nsamples; k++)
        json_str(w, NULL, row->samples[k]);
    json_end(w);
    json_str(w, "prompt", row->sample_prompt);
}

static void print_row(struct metrics *m, const struct step_row *row)
{
    struct json_out *w = &m->json;
    json_out_init(w, &m->line);
    json_object(w, NULL);
    json_int(w, "step", row->step);
    json_uint(w, "attempt", m->attempt);
    json_int(w, "t_ms", row->t_ms);
    const bool trained = row->step > 0;
    json_known_double(w, "loss", trained, row->loss);
    json_known_double(w, "loss_mean", trained, row->loss_mean);
    put_parts(w, &row->parts, "");
    json_known_double(w, "grad_norm", trained, row->grad_norm);
    json_known_double(w, "lr", trained, row->lr);
    json_known_double(w, "tokens_per_s", row->tokens_per_s >= 0, row->tokens_per_s);
    json_double(w, "samples_per_s", row->samples_per_s);
    json_double(w, "step_ms", row->step_ms);
    json_double(w, "input_ms", row->input_ms);
    json_double(w, "compute_ms", row->compute_ms);
    json_known_double(w, "communication_ms", row->communication_ms >= 0, row->communication_ms);
    json_double(w, "checkpoint_ms", row->checkpoint_ms);
    json_double(w, "flops_per_s", row->flops_per_s);
    json_known_double(w, "mfu", row->mfu >= 0, row->mfu);
    json_uint(w, "memory_bytes", row->memory_bytes);
    json_uint(w, "memory_planned_bytes", row->memory_planned_bytes);
    json_int(w, "dropped", row->dropped);
    if (row->evaluated)
        put_evaluation(w, row);
    if (row->detail.n)
        put_detail(w, &row->detail);
    if (w->nonfinite.len > 0)
        json_nonfinite(w);
    json_end(w);
    json_out_clear(w);
}

int metrics_write(struct metrics *m, const struct step_row *row, struct err *e)
{
    buf_reset(&m->line);
    if (m->torn)
        buf_putc(&m->line, '\n'); // ends the half
    print_row(m, row);
    buf_putc(&m->line, '\n');
    size_t written = write_all(m->fd, m->line.data, m->line.len);
    if (written < m->line.len) {
        m->torn = m->torn || written;
        return err_errno(e, ERR_IO, "cannot write %s", m->path);
    }
    m->torn = false;
    look_for_file(m, false);
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    look_for_file(m, true); // its folder may be back: a save makes that again
    if (m->away)
        log_warn("metrics", "%s could not be made again: its rows are lost", m->path);
    close(m->fd);
    buf_clear(&m->line);
    free(m);
}
