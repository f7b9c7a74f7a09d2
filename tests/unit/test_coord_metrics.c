// SPDX-License-Identifier: Apache-2.0
// What /metrics says of a played world, and whether promtool finds fault with it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/serve/prometheus.h"
#include "tests/unit/coord_world.h"

struct played {
    struct world w;
    struct metrics_commits commits;
};

static int play(void **state)
{
    static struct played p;
    world_init(&p.w);
    p.commits = (struct metrics_commits){0};
    *state = &p;
    return 0;
}

static int played(void **state)
{
    world_clear(&((struct played *)*state)->w);
    return 0;
}

static void assert_says(const struct buf *out, const char *line)
{
    char whole[400];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (strstr(out->data, whole))
        return;
    snprintf(whole, sizeof whole, "\n%.*s", (int)strcspn(line, " {"), line);
    const char *like = strstr(out->data, whole);
    fail_msg("no line '%s' but '%.100s'", line, like ? like + 1 : "none");
}

static void print_played(struct played *p, struct buf *out)
{
    buf_reset(out);
    metrics_print(p->w.c, &p->commits, out);
}

static void report(struct played *p, const char *job, int64_t step, double loss, double speed)
{
    Weft__Rank__StepReport r;
    Weft__Rank__Frame f;
    weft__rank__step_report__init(&r);
    weft__rank__frame__init(&f);
    f.body_case = WEFT__RANK__FRAME__BODY_STEP_REPORT;
    f.step_report = &r;
    r.step = step;
    r.steps = 10;
    r.loss = loss;
    r.samples_per_s = speed;
    r.tokens_per_s = -1;
    r.grad_norm = 1.5;
    r.input_ms = 2;
    r.compute_ms = 30;
    r.communication_ms = -1;
    world_frame(&p->w, job, 0, &f);
}

static void a_running_job_is_listed_with_its_numbers(void **state)
{
    struct played *p = *state;
    struct buf out = {0};
    char line[200], job[33];
    world_host(&p->w, 0, 2);
    world_host(&p->w, 1, 1);
    world_detach(&p->w, 1);
    snprintf(job, sizeof job, "%s", world_submit(&p->w, "tiny", 2, ""));
    print_played(p, &out);
    assert_null(strstr(out.data, "weft_job_loss{")); // nothing is known yet
    report(p, job, 3, 0.25, 1200);
    print_played(p, &out);
    assert_says(&out, "weft_build_info{version=\"" WEFT_VERSION "\"} 1");
    assert_says(&out, "weft_jobs{state=\"RUNNING\"} 1");
    assert_says(&out, "weft_jobs{state=\"QUEUED\"} 0");
    assert_says(&out, "weft_hosts{state=\"ready\"} 1");
    assert_says(&out, "weft_hosts{state=\"away\"} 1");
    assert_says(&out, "weft_devices{state=\"busy\"} 2");
    assert_says(&out, "weft_devices{state=\"free\"} 1");
    assert_says(&out, "weft_steps_total 3");
    snprintf(line, sizeof line, "weft_job_step{job=\"%s\",name=\"tiny\"} 3", job);
    assert_says(&out, line);
    snprintf(line, sizeof line, "weft_job_loss{job=\"%s\",name=\"tiny\"} 0.25", job);
    assert_says(&out, line);
    snprintf(line, sizeof line, "weft_job_samples_per_second{job=\"%s\",name=\"tiny\"} 1200", job);
    assert_says(&out, line);
    snprintf(line, sizeof line, "weft_job_grad_norm{job=\"%s\",name=\"tiny\"} 1.5", job);
    assert_says(&out, line);
    snprintf(line, sizeof line,
             "weft_job_step_seconds{job=\"%s\",name=\"tiny\",part=\"compute\"} 0.03", job);
    assert_says(&out, line);
    assert_null(strstr(out.data, "part=\"communication\"")); // not known, as the tokens are
    assert_null(strstr(out.data, "weft_job_tokens_per_second{"));
    assert_null(strstr(out.data, "weft_job_eval_loss{"));
    assert_null(strstr(out.data, "weft_job_checkpoint_timestamp_seconds{"));
    buf_clear(&out);
}

static void beat(struct played *p, int host, int64_t free, int64_t size)
{
    Weft__V1__Heartbeat h;
    Weft__V1__Up up;
    weft__v1__heartbeat__init(&h);
    weft__v1__up__init(&up);
    up.body_case = WEFT__V1__UP__BODY_HEARTBEAT;
    up.heartbeat = &h;
    h.state_free = free;
    h.state_size = size;
    h.checkpoints_free = 7;
    h.checkpoints_size = 9;
    world_up(&p->w, host, &up);
}

static void the_room_of_hosts_that_are_here_is_listed_if_it_can_be(void **state)
{
    static const int64_t lies[][2] = {{-1, 100}, {101, 100}, {5, 0}, {5, -9}, {0, 0}};
    struct played *p = *state;
    struct buf out = {0};
    world_host(&p->w, 0, 1);
    print_played(p, &out);
    assert_null(strstr(out.data, "weft_host_free_bytes{"));
    beat(p, 0, 5, 100);
    print_played(p, &out);
    assert_non_null(strstr(out.data, "\",folder=\"state\"} 5\n"));
    assert_non_null(strstr(out.data, "\",folder=\"state\"} 100\n"));
    assert_non_null(strstr(out.data, "\",folder=\"checkpoints\"} 7\n"));
    assert_non_null(strstr(out.data, "\",folder=\"checkpoints\"} 9\n"));
    for (int i = 0; i < 5; i++) {
        beat(p, 0, lies[i][0], lies[i][1]);
        print_played(p, &out);
        assert_null(strstr(out.data, "folder=\"state\""));
    }
    world_detach(&p->w, 0);
    print_played(p, &out);
    assert_null(strstr(out.data, "weft_host_free_bytes{"));
    buf_clear(&out);
}

static void numbers_that_are_none_are_written_as_the_format_has_them(void **state)
{
    static const struct {
        double loss;
        const char *text;
    } cases[] = {{NAN, "NaN"}, {INFINITY, "+Inf"}, {-INFINITY, "-Inf"}, {0.1, "0.1"}};
    struct played *p = *state;
    struct buf out = {0};
    char line[200], job[33];
    world_host(&p->w, 0, 1);
    snprintf(job, sizeof job, "%s", world_submit(&p->w, "tiny", 1, ""));
    for (int i = 0; i < 4; i++) {
        report(p, job, i + 1, cases[i].loss, 1);
        print_played(p, &out);
        snprintf(line, sizeof line, "weft_job_loss{job=\"%s\",name=\"tiny\"} %s", job,
                 cases[i].text);
        assert_says(&out, line);
    }
    buf_clear(&out);
}

static void
checkpoints_failures_and_restarts_are_counted_and_ended_jobs_have_no_series(void **state)
{
    struct played *p = *state;
    struct buf out = {0};
    char job[33];
    world_host(&p->w, 0, 1);
    snprintf(job, sizeof job, "%s", world_submit(&p->w, "tiny", 1, ""));
    world_step(&p->w, job, 2);
    world_save(&p->w, job, 2);
    world_die(&p->w, job, 0, 1, 0);
    world_pass(&p->w, 5000);
    print_played(p, &out);
    assert_says(&out, "weft_checkpoints_committed_total 1");
    assert_says(&out, "weft_failures_total 1");
    assert_says(&out, "weft_restarts_total{reason=\"exit\"} 1");
    assert_says(&out, "weft_restarts_total{reason=\"hang\"} 0");
    assert_says(&out, "weft_writable 1");
    assert_state(&p->w, job, RUNNING);
    world_finish(&p->w, job);
    assert_state(&p->w, job, SUCCEEDED);
    print_played(p, &out);
    assert_says(&out, "weft_jobs{state=\"SUCCEEDED\"} 1");
    assert_null(strstr(out.data, job));
    buf_clear(&out);
}

static void commits_fall_into_their_buckets(void **state)
{
    struct played *p = *state;
    struct buf out = {0};
    static const int64_t took_us[] = {500, 1000, 1001, 20000, 250000, 2500000};
    for (int i = 0; i < 6; i++)
        metrics_commit(&p->commits, took_us[i] * 1000, i);
    print_played(p, &out);
    assert_says(&out, "weft_commit_seconds_bucket{le=\"0.001\"} 2");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"0.003\"} 3");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"0.01\"} 3");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"0.03\"} 4");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"0.1\"} 4");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"1\"} 5");
    assert_says(&out, "weft_commit_seconds_bucket{le=\"+Inf\"} 6");
    assert_says(&out, "weft_commit_seconds_count 6");
    assert_says(&out, "weft_commit_longest_seconds 2.5");
    assert_says(&out, "weft_commit_rows_total 15");
    const char *sum = strstr(out.data, "weft_commit_seconds_sum ");
    assert_non_null(sum);
    assert_true(fabs(atof(sum + 24) - 2.772501) < 1e-9);
    buf_clear(&out);
}

// A name as a damaged or foreign store may hold it; the parser of jobs takes no such one.
static void load_odd_job(struct played *p, const struct job_record *like, const char *name)
{
    struct coord_config config = {.cluster = "0123456789abcdef0123456789abcdef"};
    struct err e = {0};
    char text[100];
    struct job_record odd = *like;
    struct arena a = {0};
    snprintf(text, sizeof text, "%s", name);
    odd.name = text;
    struct row row = row_make(ROW_JOB, &odd, &a);
    struct coord *c = coord_new(&config);
    if (coord_load(c, &row, &e))
        fail_msg("%s", e.text);
    arena_clear(&a);
    coord_free(p->w.c);
    p->w.c = c;
}

static void names_are_escaped(void **state)
{
    struct played *p = *state;
    struct buf out = {0};
    char line[200], job[33];
    world_host(&p->w, 0, 1);
    snprintf(job, sizeof job, "%s", world_submit(&p->w, "tiny", 1, ""));
    world_step(&p->w, job, 4);
    world_save(&p->w, job, 4);
    load_odd_job(p, world_job(&p->w, job), "a\"b\\c\nd{}\xc3\xa4\xff");
    print_played(p, &out);
    snprintf(line, sizeof line,
             "weft_job_step{job=\"%s\",name=\"a\\\"b\\\\c\\nd{}\xc3\xa4\xef\xbf\xbd\"} 4", job);
    assert_says(&out, line);
    buf_clear(&out);
}

static void promtool_finds_nothing_to_say(void **state)
{
    struct played *p = *state;
    struct buf out = {0};
    char job[33], said[2000] = "", command[300];
    char file[] = "/tmp/weft-metrics-XXXXXX";
    if (system("command -v promtool >/dev/null")) {
        print_message("SKIP: no promtool here\n");
        skip();
    }
    close(mkstemp(file));
    for (int round = 0; round < 3; round++) { // empty, with a job, with an odd name
        if (round == 1) {
            world_host(&p->w, 0, 1);
            snprintf(job, sizeof job, "%s", world_submit(&p->w, "tiny", 1, ""));
            report(p, job, 4, NAN, 12.5);
            world_save(&p->w, job, 4);
            metrics_commit(&p->commits, 1234567, 3);
        }
        if (round == 2)
            load_odd_job(p, world_job(&p->w, job), "a\"b\\c\nd\xff");
        print_played(p, &out);
        FILE *f = fopen(file, "we");
        assert_non_null(f);
        assert_int_equal(fwrite(out.data, 1, out.len, f), out.len);
        fclose(f);
        snprintf(command, sizeof command, "promtool check metrics < %s 2>&1", file);
        f = popen(command, "re");
        assert_non_null(f);
        size_t n = fread(said, 1, sizeof said - 1, f);
        said[n] = 0;
        assert_string_equal(said, "");
        assert_int_equal(pclose(f), 0);
    }
    unlink(file);
    buf_clear(&out);
}

#define PLAYED(f) cmocka_unit_test_setup_teardown(f, play, played)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLAYED(a_running_job_is_listed_with_its_numbers),
        PLAYED(the_room_of_hosts_that_are_here_is_listed_if_it_can_be),
        PLAYED(numbers_that_are_none_are_written_as_the_format_has_them),
        PLAYED(checkpoints_failures_and_restarts_are_counted_and_ended_jobs_have_no_series),
        PLAYED(commits_fall_into_their_buckets),
        PLAYED(names_are_escaped),
        PLAYED(promtool_finds_nothing_to_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
