// SPDX-License-Identifier: Apache-2.0
// Sinks under a worker: which rows a program gets over attempts, deaths and hangs, and that nothing of it
// is waited for.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/sinks/sink.h"
#include "worker/sinks/sinks.h"
#include "worker/sinks/tail.h"

static char root[64], metrics[100], got[100];
static int64_t rest_ns; // what sinks may take after their attempt

static int set_up(void **state)
{
    (void)state;
    char program[PATH_MAX];
    signal(SIGPIPE, SIG_IGN); // as the worker does
    rest_ns = 120 * CLOCK_S;  // on a busy machine
    built_program("weft-sink", program);
    *strrchr(program, '/') = 0;
    strcat(program, ":/usr/bin:/bin");
    setenv("PATH", program, 1); // weft-sink is not beside this program
    if (temp_folder_make(root, "sinks"))
        return -1;
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", root);
    snprintf(got, sizeof got, "%s/got", root);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return temp_folder_remove(root);
}

static void append(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void append_rows(int attempt, int from, int to)
{
    char row[200];
    for (int s = from; s <= to; s++) {
        snprintf(row, sizeof row,
                 "{\"step\":%d,\"attempt\":%d,\"loss\":1.5,\"detail\":{\"step\":1}}\n", s, attempt);
        append(metrics, row);
    }
}

// "1:1 1:2 2:3": attempt and step of the rows that hold.
static const char *rows_for(uint64_t own, int64_t resumed_at)
{
    static char text[4000];
    struct tail_attempts attempts;
    struct tail_row row;
    size_t n = 0;
    tail_look(metrics, own, resumed_at, &attempts);
    struct tail t = {.path = metrics, .attempts = &attempts, .own = own, .fd = -1};
    tail_seek(&t, 0, 0);
    text[0] = 0;
    while (tail_next(&t, &row))
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d:%d", n ? " " : "", (int)row.attempt,
                              (int)row.step);
    if (t.superseded)
        snprintf(text + n, sizeof text - n, " over");
    tail_close(&t);
    tail_attempts_clear(&attempts);
    return text;
}

// ---- rows that hold ----

static void rows_of_older_attempts_hold_up_to_where_newer_ones_began(void **state)
{
    (void)state;
    assert_string_equal(rows_for(1, 0), ""); // no file yet
    append_rows(1, 1, 4);
    assert_string_equal(rows_for(2, 4), "1:1 1:2 1:3 1:4");
    assert_string_equal(rows_for(2, 2), "1:1 1:2"); // of which the second one has none yet
    append_rows(2, 3, 5);
    append_rows(1, 5, 6); // of a zombie
    append_rows(3, 5, 6);
    assert_string_equal(rows_for(3, 4), "1:1 1:2 2:3 2:4 3:5 3:6");
    assert_string_equal(rows_for(2, 2), "1:1 1:2 2:3 2:4 2:5 over");
    assert_string_equal(rows_for(4, 0), ""); // it began again
}

static void what_is_no_whole_row_is_left_out(void **state)
{
    (void)state;
    append_rows(1, 1, 1);
    append(metrics, "\n[1]\n{\"loss\":1}\n{\"step\":2,\"att\nnoise {\"step\":3}\n{\"step\":-1}\n");
    append_rows(1, 4, 4);
    append(metrics, "{\"step\":5,\"attempt\":1"); // half a row
    assert_string_equal(rows_for(1, 0), "1:1 1:4");
    append(metrics, "}\n");
    assert_string_equal(rows_for(1, 0), "1:1 1:4 1:5");
}

// A new attempt ends the half row that the last one left. Whoever had read the half reads on behind it.
static void a_half_row_costs_none_of_the_next_attempt(void **state)
{
    struct tail_attempts attempts;
    struct tail_row row;
    (void)state;
    append_rows(1, 1, 2);
    append(metrics, "{\"step\":3,\"attempt\":1,\"lo");
    tail_look(metrics, 2, 2, &attempts);
    struct tail t = {.path = metrics, .attempts = &attempts, .own = 2, .fd = -1};
    tail_seek(&t, 0, 0);
    assert_true(tail_next(&t, &row) && tail_next(&t, &row) && !tail_next(&t, &row));
    append(metrics, "\n");
    append_rows(2, 3, 4);
    for (int step = 3; step <= 4; step++)
        assert_true(tail_next(&t, &row) && row.step == step && row.attempt == 2);
    assert_false(tail_next(&t, &row));
    tail_close(&t);
    tail_attempts_clear(&attempts);
}

static void a_line_without_end_costs_no_row_behind_it(void **state)
{
    enum { LONG = 40 << 20 }; // a row has 16 MiB at most
    char *text = malloc(LONG + 1);
    (void)state;
    assert_non_null(text);
    memset(text, 'x', LONG);
    text[LONG] = 0;
    append_rows(1, 1, 1);
    append(metrics, text);
    assert_string_equal(rows_for(1, 0), "1:1");
    append(metrics, "{\"step\":2,\"attempt\":1}\n"); // of the long line still
    append_rows(1, 3, 4);
    assert_string_equal(rows_for(1, 0), "1:1 1:3 1:4");
    free(text);
}

// ---- processes ----

static struct sinks *open_sinks(const char *given)
{
    struct sinks *s;
    struct err e = {0};
    if (sinks_open(&given, given ? 1 : 0, rest_ns, &s, &e))
        fail_msg("%s", e.text);
    assert_non_null(s);
    return s;
}

// An attempt that lasts as long as `during` does.
static void play_attempt(const char *command, const char *names, uint64_t attempt,
                         int64_t resumed_at, void (*during)(void))
{
    char given[300], job[200];
    struct buf missing = {0};
    snprintf(given, sizeof given, "mine=%s", command);
    snprintf(job, sizeof job, "name: toy\ntrain:\n  steps: 100\nmetrics:\n  sinks: [%s]\n", names);
    struct sinks *s = open_sinks(given);
    Weft__Rank__Assign a;
    weft__rank__assign__init(&a);
    a.job_text = job;
    a.job_id = root;
    a.metrics = metrics;
    a.attempt = attempt;
    a.restore_step = resumed_at;
    sinks_begin(s, 3, &a, &missing);
    assert_string_equal(buf_str(&missing), "");
    during();
    sinks_end(s, 3);
    sinks_close(s, NULL);
    buf_clear(&missing);
}

// What a sink of these tests has written: a header begins with H, else the step.
static char *read_got(void)
{
    static struct buf b;
    buf_reset(&b);
    (void)folder_read_whole(AT_FDCWD, got, true, 1 << 20, &b, NULL);
    buf_putc(&b, 0);
    return b.data;
}

static const char *place(void)
{
    static char text[200];
    char folder[100];
    snprintf(folder, sizeof folder, "%s/sinks", root);
    assert_int_equal(folder_read(folder, "mine", text, sizeof text, NULL), 0);
    return text;
}

static void write_script(const char *text, char command[200])
{
    char path[100];
    snprintf(path, sizeof path, "%s/sink.sh", root);
    (void)unlink(path);
    append(path, text);
    snprintf(command, 200, "/bin/sh %s %s", path, got);
}

// Writes H and the steps it reads into its first argument.
#define STEPS                                                                                    \
    "while read -r line; do case $line in *weft*) echo H >>$1;; *) s=${line#*:}; echo ${s%%,*} " \
    ">>$1;; esac; "

static void one_attempt(void)
{
    append_rows(1, 1, 3);
}

static void a_resumed_one(void)
{
    append_rows(2, 2, 5);
}

static void a_sink_gets_each_step_once_over_attempts(void **state)
{
    char command[200];
    (void)state;
    write_script(STEPS "done", command);
    play_attempt(command, "mine", 1, 0, one_attempt);
    assert_string_equal(read_got(), "H\n1\n2\n3\n");
    assert_non_null(strstr(place(), "\"step\":3"));
    play_attempt(command, "mine", 2, 1, a_resumed_one); // 2 and 3 were given already
    assert_string_equal(read_got(), "H\n1\n2\n3\nH\n4\n5\n");
}

static void wait_for_text(const char *text)
{
    for (int i = 0; i < 6000 && !strstr(read_got(), text); i++)
        clock_sleep_ms(10);
    assert_non_null(strstr(read_got(), text));
}

static void until_the_second_life(void)
{
    append_rows(1, 1, 3);
    wait_for_text("H\n1\n2\n3\nH\n3\n");
    append_rows(1, 4, 4);
}

static void a_sink_that_dies_is_started_again_behind_what_it_reported(void **state)
{
    char command[200];
    (void)state;
    write_script("echo 0\nn=0\n" STEPS "case $line in *weft*) ;; *) n=$((n+1));; esac\n"
                 "[ \"$(grep -c H $1)\" != 1 ] || [ $n != 2 ] || echo 2\n"
                 "[ \"$(grep -c H $1)\" != 1 ] || [ $n != 3 ] || kill -9 $$\n"
                 "done; echo $n",
                 command);
    play_attempt(command, "mine", 1, 0, until_the_second_life);
    assert_string_equal(read_got(), "H\n1\n2\n3\nH\n3\n4\n");
    assert_non_null(strstr(place(), "\"step\":4"));
}

static void a_command_that_is_not_there_swallows_no_row(void **state)
{
    char command[200];
    (void)state;
    rest_ns = CLOCK_S;
    play_attempt("/nowhere/sink", "mine", 1, 0, one_attempt);
    write_script(STEPS "done", command);
    rest_ns = 120 * CLOCK_S;
    play_attempt(command, "mine", 2, 1, a_resumed_one);
    assert_string_equal(read_got(), "H\n1\n2\n3\n4\n5\n");
}

static void until_it_was_killed(void)
{
    append_rows(1, 1, 1);
    wait_for_text("closed\n");
    for (int step = 2; !strstr(read_got(), "H\n"); step++) { // of its second life
        append_rows(1, step, step);
        clock_sleep_ms(100);
    }
}

static void a_sink_that_closes_its_input_and_lives_on_is_started_again(void **state)
{
    char command[200];
    (void)state;
    write_script(
        "if [ ! -e $1 ]; then echo 0; exec <&-; echo closed >>$1; exec sleep 1000; fi\n" STEPS
        "done",
        command);
    play_attempt(command, "mine", 1, 0, until_it_was_killed);
    assert_memory_equal(read_got(), "closed\nH\n1\n2\n", 13);
}

static void links_and_pipes_in_place_of_the_place_are_not_followed(void **state)
{
    char command[200], folder[100], other[100], file[120];
    (void)state;
    snprintf(folder, sizeof folder, "%s/sinks", root);
    snprintf(other, sizeof other, "%s/other", root);
    snprintf(file, sizeof file, "%s/mine", folder);
    write_script(STEPS "done", command);
    assert_int_equal(mkdir(other, 0755), 0);
    assert_int_equal(symlink(other, folder), 0);
    play_attempt(command, "mine", 1, 0, one_attempt);
    assert_int_equal(rmdir(other), 0); // nothing lies there
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    play_attempt(command, "mine", 2, 1, a_resumed_one);
    assert_string_equal(read_got(), "H\n1\n2\n3\nH\n1\n2\n3\n4\n5\n");
    assert_non_null(strstr(place(), "\"step\":5"));
}

static void whose_folder_is_deleted(void)
{
    append_rows(1, 1, 3);
    wait_for_text("3\n");
    assert_int_equal(temp_folder_remove(root), 0);
}

static void a_deleted_folder_does_not_come_back(void **state)
{
    char command[200];
    (void)state;
    write_script(STEPS "done", command);
    play_attempt(command, "mine", 1, 0, whose_folder_is_deleted);
    assert_int_not_equal(access(root, F_OK), 0);
    assert_int_equal(mkdir(root, 0700), 0); // for the end of the test
}

static void many_rows(void)
{
    append_rows(1, 1, 3000); // more than a pipe holds
}

// It is given its time after the attempt, and is killed then.
static void a_sink_that_hangs_is_left_and_its_rows_are_given_again(void **state)
{
    char command[200];
    (void)state;
    rest_ns = CLOCK_S;
    play_attempt("/bin/sleep 1000", "mine", 1, 0, many_rows);
    write_script(STEPS "done", command);
    rest_ns = 120 * CLOCK_S;
    play_attempt(command, "mine", 2, 3000, one_attempt);
    assert_memory_equal(read_got(), "H\n1\n2\n", 6);
    assert_non_null(strstr(read_got(), "\n3000\n"));
}

static void a_flood_of_words_holds_nothing_up(void **state)
{
    char command[200];
    (void)state;
    write_script("head -c 3000000 /dev/zero | tr '\\0' x >&2\nyes | head -c 300000\n" STEPS "done",
                 command);
    play_attempt(command, "mine", 1, 0, one_attempt);
    assert_string_equal(read_got(), "H\n1\n2\n3\n");
}

static void nothing_of_the_worker_is_open_in_a_sink(void **state)
{
    char command[200];
    (void)state;
    int fd = open("/dev/null", O_RDONLY); // inherited, were it not closed
    assert_true(fd > 2);
    write_script("cat >/dev/null\necho seen >>$1\n" // the shell has its script and more from 10 on
                 "for f in 3 4 5 6 7 8 9; do [ ! -e /proc/$$/fd/$f ] || echo $f >>$1; done",
                 command);
    play_attempt(command, "mine", 1, 0, one_attempt);
    close(fd);
    assert_string_equal(read_got(), "seen\n");
}

static void names_that_are_not_there_are_said(void **state)
{
    struct sinks *s = open_sinks(NULL);
    struct buf missing = {0};
    Weft__Rank__Assign a;
    char job[] = "metrics: {sinks: [wandb, tensorboard, mlflow]}\n";
    (void)state;
    weft__rank__assign__init(&a);
    a.job_text = job;
    a.metrics = metrics;
    sinks_begin(s, 0, &a, &missing);
    assert_string_equal(buf_str(&missing), "wandb, mlflow");
    sinks_end(s, 0);
    sinks_close(s, NULL);
    buf_clear(&missing);
}

static void wrong_flags_are_refused(void **state)
{
    static const char *const wrong[] = {
        "mine", "=cat", "a/b=cat", "mine=", "mine=  ", "A=cat", "..=x", "tensorboard=cat"};
    struct sinks *s;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_not_equal(sinks_open(&wrong[i], 1, 0, &s, NULL), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(rows_of_older_attempts_hold_up_to_where_newer_ones_began),
        CASE(what_is_no_whole_row_is_left_out),
        CASE(a_half_row_costs_none_of_the_next_attempt),
        CASE(a_line_without_end_costs_no_row_behind_it),
        CASE(a_sink_gets_each_step_once_over_attempts),
        CASE(a_sink_that_dies_is_started_again_behind_what_it_reported),
        CASE(a_command_that_is_not_there_swallows_no_row),
        CASE(a_sink_that_closes_its_input_and_lives_on_is_started_again),
        CASE(links_and_pipes_in_place_of_the_place_are_not_followed),
        CASE(a_deleted_folder_does_not_come_back),
        CASE(a_sink_that_hangs_is_left_and_its_rows_are_given_again),
        CASE(a_flood_of_words_holds_nothing_up),
        CASE(nothing_of_the_worker_is_open_in_a_sink),
        CASE(names_that_are_not_there_are_said),
        CASE(wrong_flags_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
