// SPDX-License-Identifier: Apache-2.0
// Prometheus' text format, version 0.0.4. See prometheus.h.
//
// One family after the other: its HELP and TYPE, then its samples. Jobs that have ended have no
// series of their own, so the number of series is bounded by what runs and waits.
#include "coordinator/serve/prometheus.h"

#include <math.h>
#include <stddef.h>
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

enum known_by { REPORTED, EVALUATED, RATED, NOT_NEGATIVE };
#define GAUGE(name, member, known, help)                                  \
    {                                                                     \
        "weft_job_" name, help, offsetof(struct coord_job, member), known \
    }
static const struct job_gauge {
    const char *name, *help;
    size_t offset; // of a double
    enum known_by known;
} job_gauges[] = {
    GAUGE("loss", loss, REPORTED, "Loss of the newest step that a job reported."),
    GAUGE("samples_per_second", samples_per_s, REPORTED, "Samples a second of late."),
    GAUGE("tokens_per_second", tokens_per_s, NOT_NEGATIVE, "Tokens a second of late."),
    GAUGE("eval_loss", eval_loss, EVALUATED, "Loss of the newest evaluation."),
    GAUGE("grad_norm", rates.grad_norm, RATED,
          "Norm of the newest step's gradient before it is clipped."),
};
// Of a step's time, by what it went to; the label's word.
static const struct step_part {
    const char *word;
    size_t offset;
} step_parts[] = {
    {"input", offsetof(struct coord_job, rates.input_ms)},
    {"compute", offsetof(struct coord_job, rates.compute_ms)},
    {"communication", offsetof(struct coord_job, rates.communication_ms)},
    {"checkpoint", offsetof(struct coord_job, rates.checkpoint_ms)},
};

static double number_at(const struct coord_job *j, size_t offset)
{
    double v;
    memcpy(&v, (const char *)j + offset, sizeof v);
    return v;
}

static void print_job(struct buf *out, const char *name, const struct coord_job *j, const char *key,
                      const char *word, double v)
{
    buf_puts(out, name);
    print_label(out, '{', "job", j->id);
    print_label(out, ',', "name", j->name);
    if (key)
        print_label(out, ',', key, word);
    buf_putc(out, '}');
    print_number(out, v);
}

static bool is_known(const struct coord_job *j, const struct job_gauge *g)
{
    const bool known[] = {[REPORTED] = j->reported,
                          [EVALUATED] = j->evaluated,
                          [RATED] = j->rates.known,
                          [NOT_NEGATIVE] = j->reported && number_at(j, g->offset) >= 0};
    return known[g->known];
}

static void print_gauges(const struct coord_job *jobs, int n, struct buf *out)
{
    for (size_t g = 0; g < sizeof job_gauges / sizeof *job_gauges; g++) {
        print_family(out, job_gauges[g].name, "gauge", job_gauges[g].help);
        for (int i = 0; i < n; i++)
            if (is_known(&jobs[i], &job_gauges[g]))
                print_job(out, job_gauges[g].name, &jobs[i], NULL, NULL,
                          number_at(&jobs[i], job_gauges[g].offset));
    }
    print_family(out, "weft_job_step", "gauge", "The newest step that a job reported.");
    for (int i = 0; i < n; i++)
        if (jobs[i].step >= 0)
            print_job(out, "weft_job_step", &jobs[i], NULL, NULL, (double)jobs[i].step);
    print_family(out, "weft_job_restarts", "gauge", "How often a job was started again.");
    for (int i = 0; i < n; i++)
        print_job(out, "weft_job_restarts", &jobs[i], NULL, NULL, jobs[i].restarts);
    print_family(out, "weft_job_checkpoint_timestamp_seconds", "gauge",
                 "When a job's newest checkpoint was committed.");
    for (int i = 0; i < n; i++)
        if (jobs[i].saved_ms)
            print_job(out, "weft_job_checkpoint_timestamp_seconds", &jobs[i], NULL, NULL,
                      (double)jobs[i].saved_ms / 1000);
}

static void print_parts(const struct coord_job *jobs, int n, struct buf *out)
{
    print_family(out, "weft_job_step_seconds", "gauge",
                 "Of a step of late, the time by what it went to.");
    for (int i = 0; i < n; i++)
        for (size_t k = 0; jobs[i].rates.known && k < sizeof step_parts / sizeof *step_parts; k++) {
            double ms = number_at(&jobs[i], step_parts[k].offset);
            if (ms >= 0)
                print_job(out, "weft_job_step_seconds", &jobs[i], "part", step_parts[k].word,
                          ms / 1000);
        }
    print_family(out, "weft_job_spent_seconds", "gauge",
                 "Where a job's time went so far; goodput is the share of running.");
    for (int i = 0; i < n; i++)
        for (enum time_kind k = 0; k < TIME_KINDS; k++)
            print_job(out, "weft_job_spent_seconds", &jobs[i], "on", time_word(k),
                      (double)jobs[i].spent_ms[k] / 1000);
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

static void print_notices(const struct coord *c, struct arena *a, struct buf *out)
{
    struct coord_receiver *all;
    int n = coord_receivers(c, a, &all);
    print_family(out, "weft_notices_waiting", "gauge", "Notices that wait for a receiver.");
    for (int i = 0; i < n; i++)
        print_labelled(out, "weft_notices_waiting", "receiver", all[i].name, all[i].waiting);
    print_family(out, "weft_notices_total", "counter",
                 "Tries to send a notice since the start, by how they ended.");
    for (int i = 0; i < n; i++)
        for (enum post_result k = 0; k < POST_RESULTS; k++) {
            buf_puts(out, "weft_notices_total");
            print_label(out, '{', "receiver", all[i].name);
            print_label(out, ',', "result", post_word(k));
            buf_printf(out, "} %lld\n", (long long)all[i].results[k]);
        }
}

static void print_rooms(const struct coord *c, struct arena *a, struct buf *out)
{
    struct coord_room *all;
    int n = coord_rooms(c, a, &all);
    for (int sizes = 0; sizes < 2; sizes++) {
        const char *name = sizes ? "weft_host_size_bytes" : "weft_host_free_bytes";
        print_family(out, name, "gauge",
                     sizes ? "Size of the file system of a host's folder."
                           : "What is left of the file system of a host's folder.");
        for (int i = 0; i < n; i++) {
            buf_puts(out, name);
            print_label(out, '{', "host", all[i].host);
            print_label(out, ',', "folder", all[i].folder);
            buf_printf(out, "} %lld\n", (long long)(sizes ? all[i].size : all[i].free));
        }
    }
}

void metrics_print(const struct coord *c, const struct metrics_commits *m, struct buf *out)
{
    struct coord_counts n;
    struct coord_job *jobs;
    struct arena a = {0};
    coord_count(c, &n);
    print_family(out, "weft_build_info", "gauge", "The version that runs; always 1.");
    print_labelled(out, "weft_build_info", "version", WEFT_VERSION, 1);
    print_family(out, "weft_writable", "gauge", "1: its database can be written; 0: it cannot.");
    buf_printf(out, "weft_writable %d\n", n.writable);
    print_family(out, "weft_jobs", "gauge", "Jobs that are kept, by state.");
    for (int s = JOB_QUEUED; s < JOB_STATES; s++)
        print_labelled(out, "weft_jobs", "state", job_state_word((enum job_state)s), n.jobs[s]);
    print_family(out, "weft_hosts", "gauge", "Known hosts, by state.");
    for (enum host_state s = 0; s < HOST_STATES; s++)
        print_labelled(out, "weft_hosts", "state", host_state_word(s), n.hosts[s]);
    print_rooms(c, &a, out);
    print_family(out, "weft_devices", "gauge",
                 "Devices of known hosts: held by a job or a rank, or not.");
    print_labelled(out, "weft_devices", "state", "busy", n.devices_busy);
    print_labelled(out, "weft_devices", "state", "free", n.devices - n.devices_busy);
    print_family(out, "weft_restarts_total", "counter",
                 "Restarts of jobs since the start, by how the attempt before ended.");
    for (int k = 0; k <= FAULT_SIGNS; k++)
        print_labelled(out, "weft_restarts_total", "reason",
                       k == FAULT_SIGNS ? "host"
                       : k == SIGN_NONE ? "other"
                                        : sign_word((enum fault_sign)k),
                       n.restarts[k]);
    print_counter(out, "weft_checkpoints_committed_total",
                  "Checkpoints committed, since the start.", (uint64_t)n.committed);
    print_counter(out, "weft_failures_total",
                  "Attempts that failed by themselves, since the start.", (uint64_t)n.failures);
    print_counter(out, "weft_steps_total", "Steps that jobs went forward, since the start.",
                  (uint64_t)n.steps);
    int live = coord_live_jobs(c, &a, &jobs);
    print_gauges(jobs, live, out);
    print_parts(jobs, live, out);
    print_commits(m, out);
    print_notices(c, &a, out);
    arena_clear(&a);
}
