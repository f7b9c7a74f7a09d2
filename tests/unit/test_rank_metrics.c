// SPDX-License-Identifier: Apache-2.0
// Rows of metrics.jsonl: their keys, what is not finite, and what an older file keeps.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "tests/support/stderr_to.h"
#include "tests/unit/unit.h"
#include "worker/rank/link/metrics_file.h"

static char path[64];

static int fresh_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/weft-metrics-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        return -1;
    close(fd);
    return unlink(path);
}

static int remove_path(void **state)
{
    (void)state;
    (void)unlink(path);
    return 0;
}

static void write_steps(uint64_t attempt, int64_t from, int64_t to, double loss)
{
    struct metrics *m;
    assert_int_equal(metrics_open(path, attempt, &m, NULL), 0);
    for (int64_t s = from; s <= to; s++) {
        struct step_row row = {.step = s, .loss = loss, .tokens_per_s = -1, .samples_per_s = 8};
        assert_int_equal(metrics_write(m, &row, NULL), 0);
    }
    metrics_close(m);
}

static size_t read_rows(char lines[][1024], size_t max)
{
    FILE *f = fopen(path, "re");
    size_t n = 0;
    assert_non_null(f);
    while (n < max && fgets(lines[n], 1024, f))
        n++;
    fclose(f);
    return n;
}

static double number(const char *line, const char *key)
{
    struct arena a;
    struct json *o;
    arena_init(&a);
    assert_int_equal(json_parse(&a, line, strcspn(line, "\n"), &o, NULL), 0);
    const struct json *v = json_get(o, key);
    assert_non_null(v);
    double d = v->type == JSON_NULL ? -1234 : v->number;
    arena_clear(&a);
    return d;
}

static void a_row_has_the_documented_keys(void **state)
{
    (void)state;
    char lines[2][1024];
    struct metrics *m;
    static const struct row_part parts[] = {{"kl", 1}, {"rest", 1}};
    static const struct row_part eval_parts[] = {{"accuracy", 1}, {"kl", 1}};
    static const double values[] = {0.125, 0.375}, eval_values[] = {0.9, 0.25};
    struct step_row row = {.step = 3,
                           .steps = 9,
                           .t_ms = 1234567890123,
                           .loss = 0.5,
                           .loss_mean = 0.75,
                           .grad_norm = 1.25,
                           .lr = 0.001,
                           .tokens_per_s = -1,
                           .samples_per_s = 640,
                           .step_ms = 12.5,
                           .input_ms = 0.5,
                           .compute_ms = 9,
                           .communication_ms = 2,
                           .checkpoint_ms = 1,
                           .flops_per_s = 2e12,
                           .mfu = 0.25,
                           .memory_bytes = 1000,
                           .memory_planned_bytes = 2000,
                           .dropped = 4,
                           .evaluated = true,
                           .eval_loss = 0.4,
                           .eval_accuracy = 0.875,
                           .parts = {2, parts, values},
                           .eval_parts = {2, eval_parts, eval_values}};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 2), 1);
    assert_true(number(lines[0], "step") == 3 && number(lines[0], "loss") == 0.5);
    assert_true(number(lines[0], "grad_norm") == 1.25 && number(lines[0], "lr") == 0.001);
    assert_true(number(lines[0], "tokens_per_s") == -1234);
    assert_true(number(lines[0], "samples_per_s") == 640 && number(lines[0], "step_ms") == 12.5);
    assert_true(number(lines[0], "eval_loss") == 0.4 && number(lines[0], "eval_accuracy") == 0.875);
    assert_true(number(lines[0], "kl") == 0.125 && number(lines[0], "rest") == 0.375);
    assert_true(number(lines[0], "eval_kl") == 0.25); // an evaluation reports by itself
    assert_null(strstr(lines[0], "eval_rest"));
    assert_null(strstr(strstr(lines[0], "eval_accuracy") + 1, "eval_accuracy")); // once
    assert_true(number(lines[0], "attempt") == 7 && number(lines[0], "t_ms") == 1234567890123);
    assert_true(number(lines[0], "loss_mean") == 0.75 && number(lines[0], "dropped") == 4);
    assert_true(number(lines[0], "input_ms") == 0.5 && number(lines[0], "compute_ms") == 9);
    assert_true(number(lines[0], "communication_ms") == 2);
    assert_true(number(lines[0], "checkpoint_ms") == 1 && number(lines[0], "mfu") == 0.25);
    assert_true(number(lines[0], "flops_per_s") == 2e12);
    assert_true(number(lines[0], "memory_bytes") == 1000);
    assert_true(number(lines[0], "memory_planned_bytes") == 2000);
    assert_null(strstr(lines[0], "detail"));
    assert_null(strstr(lines[0], "samples\"")); // the job asks for none
}

static void what_is_not_known_is_null_and_nothing_else(void **state)
{
    (void)state;
    char lines[1][1024];
    struct metrics *m;
    struct step_row row = {.step = 1, .tokens_per_s = -1, .communication_ms = -1, .mfu = -1};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 1), 1);
    assert_true(number(lines[0], "tokens_per_s") == -1234 && number(lines[0], "mfu") == -1234);
    assert_true(number(lines[0], "communication_ms") == -1234);
    assert_null(strstr(lines[0], "nonfinite"));
}

static void a_detail_names_its_step_and_its_groups(void **state)
{
    (void)state;
    char lines[1][1024];
    struct metrics *m;
    static const struct row_group groups[] = {{"layers/0", 3, 0.5}, {"head", 4, 0.25}};
    struct step_row row = {.step = 9, .tokens_per_s = -1, .detail = {8, 2, groups}};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 1), 1);
    assert_non_null(strstr(lines[0], "\"detail\":{\"step\":8,\"groups\":{\"layers/0\":{"
                                     "\"weight_norm\":3,\"update_norm\":0.5},\"head\":{"
                                     "\"weight_norm\":4,\"update_norm\":0.25}}}"));
}

// Two layers report a number and a list each: one key a name, a list of the layers under it.
static void what_several_layers_report_is_one_list(void **state)
{
    static const struct row_part parts[] = {
        {"load", 2}, {"dropped", 1}, {"load", 2}, {"dropped", 1}};
    static const double values[] = {3, 5, 0.25, 4, 4, 0.5};
    (void)state;
    char lines[1][1024];
    struct metrics *m;
    struct step_row row = {.step = 1, .tokens_per_s = -1, .parts = {4, parts, values}};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 1), 1);
    assert_non_null(strstr(lines[0], "\"load\":[[3,5],[4,4]],\"dropped\":[0.25,0.5]"));
}

static void samples_stand_in_the_row_of_their_evaluation(void **state)
{
    (void)state;
    char lines[2][1024];
    struct metrics *m;
    const char *const texts[] = {"one\n\"two\"", ""};
    struct step_row row = {.step = 1,
                           .tokens_per_s = -1,
                           .evaluated = true,
                           .eval_accuracy = (double)NAN,
                           .nsamples = 2,
                           .samples = texts,
                           .sample_prompt = "say \\n"}; // an escape, as the job file has it
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 2), 1);
    assert_non_null(
        strstr(lines[0], "\"samples\":[\"one\\n\\\"two\\\"\",\"\"],\"prompt\":\"say \\\\n\""));
    assert_null(strstr(lines[0], "nonfinite"));
}

static void what_is_not_finite_is_null_and_listed(void **state)
{
    (void)state;
    char lines[2][1024];
    struct metrics *m;
    struct step_row row = {
        .step = 1, .loss = (double)NAN, .grad_norm = (double)INFINITY, .tokens_per_s = -1};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 2), 1);
    assert_true(number(lines[0], "loss") == -1234 && number(lines[0], "grad_norm") == -1234);
    const char *list = strstr(lines[0], "\"nonfinite\"");
    assert_non_null(list);
    assert_non_null(strstr(list, "loss"));
    assert_non_null(strstr(list, "grad_norm"));
    assert_null(strstr(list, "\"lr\""));
}

static void a_newer_attempt_appends_behind_the_rows_of_older_ones(void **state)
{
    (void)state;
    char lines[40][1024];
    write_steps(1, 1, 14, 1);
    write_steps(2, 11, 12, 2);
    write_steps(3, 1, 1, 3);
    assert_int_equal(read_rows(lines, 40), 17);
    for (int i = 0; i < 17; i++) {
        int attempt = i < 14 ? 1 : i < 16 ? 2 : 3;
        assert_true(number(lines[i], "step") == (i < 14 ? i + 1 : i < 16 ? i - 3 : 1));
        assert_true(number(lines[i], "attempt") == attempt && number(lines[i], "loss") == attempt);
    }
}

static void append_text(const char *text)
{
    FILE *f = fopen(path, "ae");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void a_torn_last_row_stays_and_the_next_begins_on_a_new_line(void **state)
{
    (void)state;
    char lines[40][1024];
    write_steps(1, 1, 5, 1);
    append_text("{\"step\":6,\"lo");
    FILE *log = tmpfile();
    char said[512] = "";
    assert_non_null(log);
    int before = lead_stderr(fileno(log));
    write_steps(2, 6, 6, 2);
    lead_back(before);
    rewind(log);
    assert_non_null(fgets(said, sizeof said, log));
    fclose(log);
    assert_non_null(strstr(said, "its last row is not whole"));
    assert_int_equal(read_rows(lines, 40), 7);
    assert_string_equal(lines[5], "{\"step\":6,\"lo\n");
    assert_true(number(lines[6], "step") == 6);
}

static void a_torn_row_may_be_all_there_is(void **state)
{
    (void)state;
    char lines[40][1024];
    append_text("[[0123456789");
    write_steps(1, 1, 1, 1);
    assert_int_equal(read_rows(lines, 40), 2);
    assert_string_equal(lines[0], "[[0123456789\n");
    assert_true(number(lines[1], "step") == 1);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct metrics *m;
    struct err e = {0};
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(metrics_open(path, 7, &m, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is not a file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(metrics_open(path, 7, &m, &e), ERR_IO);
    assert_non_null(strstr(e.text, "cannot open"));
}

// A model of many layers with many experts each tells the tokens of every one: such rows are long.
static void rows_of_many_numbers_stay_whole(void **state)
{
    (void)state;
    enum { LAYERS = 61, EXPERTS = 256 };
    static double tokens[LAYERS * EXPERTS];
    struct row_part parts[LAYERS];
    struct metrics *m;
    struct stat before, after;
    for (int i = 0; i < LAYERS; i++)
        parts[i] = (struct row_part){"expert_tokens", EXPERTS};
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        tokens[i] = 1000000 + i;
    struct step_row row = {.tokens_per_s = -1, .parts = {LAYERS, parts, tokens}};
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    for (row.step = 1; row.step <= 2; row.step++)
        assert_int_equal(metrics_write(m, &row, NULL), 0);
    metrics_close(m);
    assert_int_equal(stat(path, &before), 0);
    assert_true(before.st_size > 2 * 8 * LAYERS * EXPERTS); // seven digits and a comma each
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    metrics_close(m);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
}

// The file may grow by half a row, which the next row must not be glued to.
static void a_row_that_does_not_fit_is_a_line_of_its_own(void **state)
{
    (void)state;
    char lines[40][1024];
    struct metrics *m;
    struct err e = {0};
    struct step_row row = {.step = 3, .loss = 1, .tokens_per_s = -1};
    struct rlimit before, small;
    struct stat st;
    write_steps(0, 1, 2, 1);
    assert_int_equal(metrics_open(path, 7, &m, &e), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){(rlim_t)st.st_size + 20, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = metrics_write(m, &row, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, ERR_IO);
    row.step = 4;
    assert_int_equal(metrics_write(m, &row, &e), 0);
    metrics_close(m);
    assert_int_equal(read_rows(lines, 40), 4);
    assert_int_equal(strlen(lines[2]), 21); // what fitted, and its end
    assert_true(number(lines[3], "step") == 4);
}

// What stands in the log of stderr since lead_stderr(); `said` is cut to its size.
static void read_log(FILE *log, int before, char *said, size_t size)
{
    lead_back(before);
    rewind(log);
    said[fread(said, 1, size - 1, log)] = 0;
    fclose(log);
}

// The folder comes back later, as the next save makes it again: nothing is missing then.
static void a_file_whose_folder_was_removed_is_made_again_with_all_its_rows(void **state)
{
    (void)state;
    char lines[40][1024], said[2000], dir[64];
    struct metrics *m;
    FILE *log = tmpfile();
    assert_non_null(log);
    snprintf(dir, sizeof dir, "%.58s.d", path);
    assert_int_equal(mkdir(dir, 0755), 0);
    snprintf(path, sizeof path, "%.58s/m", dir);
    write_steps(0, 1, 3, 1);
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    int before = lead_stderr(fileno(log));
    for (int64_t step = 4; step <= 8; step++) {
        struct step_row row = {.step = step, .loss = 2, .tokens_per_s = -1};
        if (step == 6)
            assert_int_equal(mkdir(dir, 0755), 0);
        assert_int_equal(metrics_write(m, &row, NULL), 0);
    }
    metrics_close(m);
    read_log(log, before, said, sizeof said);
    assert_int_equal(read_rows(lines, 40), 8);
    for (int i = 0; i < 8; i++)
        assert_true(number(lines[i], "step") == i + 1);
    char *held = strstr(said, "rows are held until"), *again = strstr(said, "it is made again");
    assert_true(held && again && held < again);
    assert_null(strstr(held + 1, "rows are held until")); // once, not every row
    assert_null(strstr(said, "are lost"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); // and nothing else is left in it
}

static void write_row(struct metrics *m, int64_t step)
{
    struct step_row row = {.step = step, .loss = 2, .tokens_per_s = -1};
    assert_int_equal(metrics_write(m, &row, NULL), 0);
}

// Each try copies the whole file while training waits. A machine that is too slow to see the pause
// sees that the file comes back.
static void a_file_that_could_not_be_put_back_is_tried_again_after_a_pause(void **state)
{
    (void)state;
    char lines[40][1024], dir[64];
    struct metrics *m;
    snprintf(dir, sizeof dir, "%.58s.d", path);
    assert_int_equal(mkdir(dir, 0755), 0);
    snprintf(path, sizeof path, "%.58s/m", dir);
    write_steps(0, 1, 3, 1);
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    int64_t began = clock_mono_ns(), step = 3;
    write_row(m, ++step);
    assert_int_equal(mkdir(dir, 0755), 0);
    write_row(m, ++step);
    bool there = !access(path, F_OK);
    assert_true(!there || clock_mono_ns() - began >= CLOCK_S);
    for (int tries = 0; tries < 30 && access(path, F_OK); tries++) {
        clock_sleep_ms(1000);
        write_row(m, ++step);
    }
    assert_int_equal(read_rows(lines, 40), (size_t)step);
    metrics_close(m);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); // and nothing else is left in it
}

static void rows_whose_folder_never_comes_back_are_said_to_be_lost(void **state)
{
    (void)state;
    char said[2000], dir[64];
    struct metrics *m;
    FILE *log = tmpfile();
    assert_non_null(log);
    snprintf(dir, sizeof dir, "%.58s.d", path);
    assert_int_equal(mkdir(dir, 0755), 0);
    snprintf(path, sizeof path, "%.58s/m", dir);
    assert_int_equal(metrics_open(path, 7, &m, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    int before = lead_stderr(fileno(log));
    metrics_close(m);
    read_log(log, before, said, sizeof said);
    assert_non_null(strstr(said, "are lost"));
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, fresh_path, remove_path)
    const struct CMUnitTest tests[] = {
        CASE(a_row_has_the_documented_keys),
        CASE(what_several_layers_report_is_one_list),
        CASE(samples_stand_in_the_row_of_their_evaluation),
        CASE(what_is_not_finite_is_null_and_listed),
        CASE(what_is_not_known_is_null_and_nothing_else),
        CASE(a_detail_names_its_step_and_its_groups),
        CASE(a_newer_attempt_appends_behind_the_rows_of_older_ones),
        CASE(rows_of_many_numbers_stay_whole),
        CASE(a_torn_last_row_stays_and_the_next_begins_on_a_new_line),
        CASE(a_torn_row_may_be_all_there_is),
        CASE(what_is_no_file_is_refused),
        CASE(a_row_that_does_not_fit_is_a_line_of_its_own),
        CASE(a_file_whose_folder_was_removed_is_made_again_with_all_its_rows),
        CASE(a_file_that_could_not_be_put_back_is_tried_again_after_a_pause),
        CASE(rows_whose_folder_never_comes_back_are_said_to_be_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
