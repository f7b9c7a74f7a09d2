// SPDX-License-Identifier: Apache-2.0
// Last and best of several jobs; see job_scores.h.
#include "coordinator/cli/job_scores.h"

#include <math.h>

#include "common/metrics/rows.h"

static const char *const keys[] = {"loss", "eval_loss", "tokens_per_s", "samples_per_s"};
enum { LOSS, EVAL_LOSS, TOKENS, SAMPLES, KEYS };

struct score {
    int64_t step;               // of the newest row; -1: there is none
    double last[KEYS];          // NaN: not known
    double best[EVAL_LOSS + 1]; // least of the two losses
    int64_t best_step[EVAL_LOSS + 1];
};

static void take_rows(const struct rows *r, struct score *s)
{
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < KEYS; k++) {
            double v = rows_value(r, i, k);
            if (!isfinite(v))
                continue;
            s->last[k] = v;
            if (k > EVAL_LOSS || v >= s->best[k])
                continue;
            s->best[k] = v;
            s->best_step[k] = r->row[i].step;
        }
    s->step = r->n ? r->row[r->n - 1].step : -1;
}

static int read_score(struct cli_link *l, const char *job, struct score *s)
{
    struct job_rows file;
    struct rows r;
    struct err e = {0};
    *s = (struct score){.step = -1, .best = {INFINITY, INFINITY}, .best_step = {-1, -1}};
    for (int k = 0; k < KEYS; k++)
        s->last[k] = (double)NAN;
    rows_init(&r, keys, KEYS);
    int rc = job_rows_open(&file, l, job);
    if (!rc && file.fd >= 0 && !rows_read(&r, file.fd, &e))
        take_rows(&r, s);
    job_rows_close(&file);
    rows_clear(&r);
    return rc;
}

static void add_number(struct table *t, double v)
{
    if (isfinite(v))
        table_add(t, "%.4g", v);
    else
        table_add(t, "-");
}

static void add_line(struct table *t, const Weft__V1__JobStatus *job, const struct score *s)
{
    table_add(t, "%.12s", job->job);
    table_add(t, "%s", job->name);
    table_add(t, "%s", word_state(job->state));
    if (s->step >= 0)
        table_add(t, "%lld/%lld", (long long)s->step, (long long)job->steps);
    else
        table_add(t, "-/%lld", (long long)job->steps);
    add_number(t, s->last[LOSS]);
    add_number(t, s->best[LOSS]);
    add_number(t, s->last[EVAL_LOSS]);
    add_number(t, s->best[EVAL_LOSS]);
    if (s->best_step[EVAL_LOSS] >= 0)
        table_add(t, "%lld", (long long)s->best_step[EVAL_LOSS]);
    else
        table_add(t, "-");
    bool tokens = s->last[TOKENS] > 0;
    char rate[WORD_MAX];
    double speed = s->last[tokens ? TOKENS : SAMPLES];
    if (isfinite(speed))
        table_add(t, "%s %s/s", word_rate(speed, rate), tokens ? "tokens" : "samples");
    else
        table_add(t, "-");
}

static void write_line(struct json_out *w, const Weft__V1__JobStatus *job, const struct score *s)
{
    json_object(w, NULL);
    json_str(w, "job", job->job);
    json_str(w, "name", job->name);
    json_str(w, "state", word_state(job->state));
    json_count(w, "step", s->step);
    json_int(w, "steps", job->steps);
    for (int k = 0; k < KEYS; k++)
        json_known_double(w, keys[k], isfinite(s->last[k]), s->last[k]);
    json_known_double(w, "best_loss", isfinite(s->best[LOSS]), s->best[LOSS]);
    json_count(w, "best_loss_step", s->best_step[LOSS]);
    json_known_double(w, "best_eval_loss", isfinite(s->best[EVAL_LOSS]), s->best[EVAL_LOSS]);
    json_count(w, "best_eval_loss_step", s->best_step[EVAL_LOSS]);
    json_end(w);
}

int job_scores_print(struct cli_link *l, const Weft__V1__JobsReply *jobs, bool json)
{
    struct buf out = {0};
    struct json_out w;
    struct table t;
    if (json) {
        json_print_start(&w, &out, true);
        json_array(&w, "jobs");
    } else {
        table_init(&t, "JOB NAME STATE >STEP >LOSS >BEST >EVAL >BEST >AT >SPEED");
        t.drop = "SPEED STATE JOB AT LOSS";
    }
    int rc = CLIENT_OK;
    for (size_t i = 0; i < jobs->n_jobs; i++) {
        struct score s;
        int its = read_score(l, jobs->jobs[i]->job, &s);
        if (!rc)
            rc = its;
        if (json)
            write_line(&w, jobs->jobs[i], &s);
        else
            add_line(&t, jobs->jobs[i], &s);
    }
    if (json) {
        json_end(&w);
        json_print_end(&w);
    } else {
        table_print(&t, &out);
    }
    put_out(&out);
    return rc;
}
