// SPDX-License-Identifier: Apache-2.0
// Prometheus' text format, version 0.0.4. See prometheus.h.
//
// One family after the other: its HELP and TYPE, then its samples. Jobs that have ended have no
// series of their own, so the number of series is bounded by what runs and waits.
#include "coordinator/serve/prometheus.h"

#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "coordinator/decide/words.h"

static const struct {
    int64_t ns;
    const char *le;
} buckets[] = {{1 * CLOCK_MS, "0.001"}, {3 * CLOCK_MS, "0.003"}, {10 * CLOCK_MS, "0.01"},
               {30 * CLOCK_MS, "0.03"}, {100 * CLOCK_MS, "0.1"}, {1000 * CLOCK_MS, "1"}};
enum { BUCKETS = sizeof buckets / sizeof *buckets };
_Static_assert(sizeof((struct metrics_commits *)0)->under / sizeof(uint64_t) == BUCKETS, "buckets");

void metrics_commit(struct metrics_commits *m, int64_t ns, int rows)
{
    double s = (double)ns / 1e9;
    m->n++;
    m->rows += (uint64_t)rows;
    m->seconds += s;
    if (s > m->longest_s)
        m->longest_s = s;
    for (int i = 0; i < BUCKETS; i++)
        m->under[i] += ns <= buckets[i].ns;
}

// ---- the format ----

static void print_family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_label(struct buf *out, char open, const char *key, const char *value)
{
    buf_printf(out, "%c%s=\"", open, key);
    for (const char *p = value; *p;) {
        size_t n = utf8_length(p, strlen(p));
        if (!n)
            buf_puts(out, "\xef\xbf\xbd"); // the format is UTF-8
        else if (*p == '\n')
            buf_puts(out, "\\n");
        else if (*p == '\\' || *p == '"')
            buf_printf(out, "\\%c", *p);
        else
            buf_append(out, p, n);
        p += n ? n : 1;
    }
    buf_putc(out, '"');
}

static void print_number(struct buf *out, double v)
{
    char text[32];
    if (isnan(v))
        strcpy(text, "NaN");
    else if (isinf(v))
        strcpy(text, v > 0 ? "+Inf" : "-Inf");
    else
        json_format_double(v, text);
    buf_printf(out, " %s\n", text);
}

static void print_counter(struct buf *out, const char *name, const char *help, uint64_t v)
{
    print_family(out, name, "counter", help);
    buf_printf(out, "%s %llu\n", name, (unsigned long long)v);
}

// Prints one sample of a family whose samples differ in one label.
static void print_labelled(struct buf *out, const char *name, const char *key, const char *value,
                           int64_t v)
{
    buf_puts(out, name);
    print_label(out, '{', key, value);
    buf_printf(out, "} %lld\n", (long long)v);
}

// ---- what there is ----

// ---- a job's own ----

static bool get_step(const Weft__V1__JobStatus *j, double *v)
{
    *v = (double)j->step;
    return j->step >= 0;
}

static bool get_loss(const Weft__V1__JobStatus *j, double *v)
{
    *v = j->loss;
    return j->reported;
}

static bool get_speed(const Weft__V1__JobStatus *j, double *v)
{
    *v = j->samples_per_s;
    return j->reported;
}

static const struct {
    const char *name, *help;
    bool (*value)(const Weft__V1__JobStatus *j, double *v); // false: not known
} job_families[] = {
    {"weft_job_step", "The newest step that a job reported.", get_step},
    {"weft_job_loss", "Loss of that step.", get_loss},
    {"weft_job_samples_per_second", "Samples a second of late.", get_speed},
};

static void print_each_job(const Weft__V1__JobsReply *jobs, struct buf *out)
{
    for (size_t f = 0; f < sizeof job_families / sizeof *job_families; f++) {
        print_family(out, job_families[f].name, "gauge", job_families[f].help);
        for (size_t i = 0; i < jobs->n_jobs; i++) {
            const Weft__V1__JobStatus *j = jobs->jobs[i];
            double v;
            if (!job_families[f].value(j, &v))
                continue;
            buf_puts(out, job_families[f].name);
            print_label(out, '{', "job", j->job);
            print_label(out, ',', "name", j->name);
            buf_putc(out, '}');
            print_number(out, v);
        }
    }
}

// ---- commits ----

static void print_commits(const struct metrics_commits *m, struct buf *out)
{
    print_family(out, "weft_commit_seconds", "histogram", "Time of a transaction of the store.");
    for (int i = 0; i < BUCKETS; i++)
        print_labelled(out, "weft_commit_seconds_bucket", "le", buckets[i].le,
                       (int64_t)m->under[i]);
    print_labelled(out, "weft_commit_seconds_bucket", "le", "+Inf", (int64_t)m->n);
    buf_puts(out, "weft_commit_seconds_sum");
    print_number(out, m->seconds);
    buf_printf(out, "weft_commit_seconds_count %llu\n", (unsigned long long)m->n);
    print_family(out, "weft_commit_longest_seconds", "gauge", "The longest of them.");
    buf_puts(out, "weft_commit_longest_seconds");
    print_number(out, m->longest_s);
    print_counter(out, "weft_commit_rows_total", "Rows that they wrote.", m->rows);
}

void metrics_print(const struct coord *c, const struct metrics_commits *m, struct buf *out)
{
    struct coord_counts n;
    struct arena a;
    arena_init(&a);
    coord_count(c, &n);
    print_family(out, "weft_build_info", "gauge", "The version that runs; always 1.");
    print_labelled(out, "weft_build_info", "version", WEFT_VERSION, 1);
    print_family(out, "weft_jobs", "gauge", "Jobs that are kept, by state.");
    for (int s = JOB_QUEUED; s < JOB_STATES; s++)
        print_labelled(out, "weft_jobs", "state", job_state_word((enum job_state)s), n.jobs[s]);
    print_family(out, "weft_hosts", "gauge", "Known hosts, by state.");
    for (enum host_state s = 0; s < HOST_STATES; s++)
        print_labelled(out, "weft_hosts", "state", host_state_word(s), n.hosts[s]);
    print_family(out, "weft_devices", "gauge",
                 "Devices of known hosts: held by a job or a rank, or not.");
    print_labelled(out, "weft_devices", "state", "busy", n.devices_busy);
    print_labelled(out, "weft_devices", "state", "free", n.devices - n.devices_busy);
    print_counter(out, "weft_restarts_total", "Restarts of jobs after a failure, since the start.",
                  (uint64_t)n.restarts);
    print_counter(out, "weft_checkpoints_committed_total",
                  "Checkpoints committed, since the start.", (uint64_t)n.committed);
    print_counter(out, "weft_failures_total",
                  "Attempts that failed by themselves, since the start.", (uint64_t)n.failures);
    print_counter(out, "weft_steps_total", "Steps that jobs went forward, since the start.",
                  (uint64_t)n.steps);
    print_each_job(coord_jobs(c, false, 0, 0, &a), out);
    print_commits(m, out);
    arena_clear(&a);
}
