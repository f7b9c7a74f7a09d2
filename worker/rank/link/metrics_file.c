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
#include "common/ckpt/durable.h"

struct metrics {
    int fd;
    off_t end;        // of the last whole row
    bool away;        // somebody removed the file, and it could not be put back yet
    int64_t again_ns; // while it is away: when to try next to put it back
    int64_t pause_ns; // while it is away: how long to wait after that
    char path[4096];
    char run_id[64];
    struct buf line;
    struct json_out json;
};

// The pause between two tries to put the file back, each of which copies all of it. Each pause is
// twice as long as the one before.
#define FIRST_PAUSE_NS (1 * CLOCK_S)
#define LAST_PAUSE_NS  (64 * CLOCK_S)

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

// A new, empty file in place of any that is there. It is opened to read too, for put_back().
static int make_file(const char *path)
{
    (void)unlink(path);
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
}

// Reads the step of a row; false where the line is not a whole row.
static bool read_row_step(const char *line, size_t len, int64_t *step)
{
    struct arena a;
    arena_init(&a);
    struct json *row;
    bool whole = len > 0 && line[len - 1] == '\n' && !json_parse(&a, line, len - 1, &row, NULL) &&
                 row->type == JSON_OBJECT && !json_get_int(row, "step", step, NULL);
    arena_clear(&a);
    return whole;
}

// Copies the rows up to the restored step. Rows come in the order of their steps.
static int copy_rows(const char *path, int64_t restored_step, int to, struct err *e)
{
    FILE *f = restored_step > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return restored_step > 0 && errno != ENOENT ? err_errno(e, ERR_IO, "cannot read %s", path)
                                                    : 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t copied = 0;
    int rc = 0;
    while ((n = getline(&line, &cap, f)) > 0) {
        int64_t step;
        if (!read_row_step(line, (size_t)n, &step)) {
            log_warn("metrics", "%s: what follows step %lld is no row of metrics and is left out",
                     path, (long long)copied);
            break;
        }
        if (step > restored_step)
            break;
        copied = step;
        if (write_all(to, line, (size_t)n)) {
            rc = err_errno(e, ERR_IO, "cannot write %s.new", path);
            break;
        }
    }
    free(line);
    fclose(f);
    return rc;
}

int metrics_open(const char *path, const char *run_id, int64_t restored_step, struct metrics **out,
                 struct err *e)
{
    char tmp[4096];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.new", path) >= sizeof tmp)
        return err_set(e, ERR_LIMIT, "the path %s is too long", path);
    int fd = make_file(tmp);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot make %s", tmp);
    int rc = copy_rows(path, restored_step, fd, e);
    if (!rc && rename(tmp, path))
        rc = err_errno(e, ERR_IO, "cannot rename %s to %s", tmp, path);
    if (rc) {
        close(fd);
        (void)unlink(tmp);
        return rc;
    }
    struct metrics *m = heap_alloc(sizeof *m);
    m->fd = fd;
    m->end = lseek(fd, 0, SEEK_END);
    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(m->run_id, sizeof m->run_id, "%s", run_id);
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

static int copy_all(int from, off_t end, int to)
{
    char piece[1 << 16];
    for (off_t at = 0; at < end;) {
        size_t want = end - at < (off_t)sizeof piece ? (size_t)(end - at) : sizeof piece;
        ssize_t n = pread(from, piece, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || write_all(to, piece, (size_t)n))
            return -1;
        at += n;
    }
    return 0;
}

// Makes the file again with all its rows, which the open descriptor still holds. It never replaces a
// file that is there: that is a newer attempt's, and this process is a zombie.
static int put_back(struct metrics *m)
{
    char tmp[sizeof m->path + 8];
    snprintf(tmp, sizeof tmp, "%s.again", m->path);
    int fd = make_file(tmp);
    if (fd < 0)
        return -1;
    int rc = copy_all(m->fd, m->end, fd);
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

int metrics_write(struct metrics *m, const struct step_row *row, struct err *e)
{
    buf_reset(&m->line);
    json_out_init(&m->json, &m->line);
    json_object(&m->json, NULL);
    json_int(&m->json, "step", row->step);
    json_double(&m->json, "loss", row->loss);
    put_parts(&m->json, &row->parts, "");
    json_double(&m->json, "grad_norm", row->grad_norm);
    json_double(&m->json, "lr", row->lr);
    if (row->tokens_per_s < 0)
        json_null(&m->json, "tokens_per_s");
    else
        json_double(&m->json, "tokens_per_s", row->tokens_per_s);
    json_double(&m->json, "samples_per_s", row->samples_per_s);
    json_double(&m->json, "step_ms", row->step_ms);
    json_str(&m->json, "run", m->run_id);
    if (row->evaluated) {
        json_double(&m->json, "eval_loss", row->eval_loss);
        if (isnan(row->eval_accuracy)) // a decoder has none
            json_null(&m->json, "eval_accuracy");
        else
            json_double(&m->json, "eval_accuracy", row->eval_accuracy);
        put_parts(&m->json, &row->eval_parts, "eval_");
    }
    if (row->nsamples) {
        json_array(&m->json, "samples");
        for (int k = 0; k < row->nsamples; k++)
            json_str(&m->json, NULL, row->samples[k]);
        json_end(&m->json);
        json_str(&m->json, "prompt", row->sample_prompt);
    }
    if (m->json.nonfinite.len > 0)
        json_nonfinite(&m->json);
    json_end(&m->json);
    json_out_clear(&m->json);
    buf_putc(&m->line, '\n');
    if (write_all(m->fd, m->line.data, m->line.len)) {
        err_errno(e, ERR_IO, "cannot write %s", m->path);
        if (ftruncate(m->fd, m->end))
            log_warn("metrics", "%s: half a row stays: a resume leaves out what follows it",
                     m->path);
        return ERR_IO;
    }
    m->end += (off_t)m->line.len;
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
