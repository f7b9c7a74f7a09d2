// SPDX-License-Identifier: Apache-2.0
// Attempts with real processes: weft-rank's true main around a double of training (rank_double.c), led
// by lead-ranks. What happens when a rank dies, fails, stops or is asked to, and who is named.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/scratch.h"
#include "tests/unit/unit.h"

static char top[TEMP_FOLDER_MAX], program[PATH_MAX], leader[PATH_MAX];

static const char job[] = "name: tiny\n"
                          "model: {program: mlp, inputs: 4, hidden: [8], classes: 2}\n"
                          "mesh: {dp: 3}\n"
                          "data: {format: npy, train: {images: a.npy, labels: b.npy}, batch: 12}\n"
                          "optimizer: {kind: sgd}\n"
                          "schedule: {kind: constant, value: 0.1}\n"
                          "train: {steps: 2000, seed: 1}\n"
                          "checkpoint: {dir: ckpt}\n"
                          "resources: {devices: 3}\n"
                          "restart: {hang_after: 60s}\n";

static int make_top(void **state)
{
    (void)state;
    if (temp_folder_make(top, "rank") || chdir(top))
        return -1;
    FILE *f = fopen("job.yaml", "we");
    if (!f)
        return -1;
    fputs(job, f);
    return fclose(f);
}

static int remove_top(void **state)
{
    (void)state;
    return chdir("/") || temp_folder_remove(top);
}

// Starts the leader with flags up to null; all its output goes to the file `out`.
static pid_t start(const char *out, const char *order, const char *flags[])
{
    const char *argv[24] = {leader, "run", "job.yaml", "--rank", program};
    int n = 5;
    for (int i = 0; flags && flags[i]; i++)
        argv[n++] = flags[i];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    setenv("WEFT_DOUBLE", order ? order : "", 1);
    union {
        const char **from;
        char **to;
    } u = {.from = argv};
    execv(leader, u.to);
    _exit(127);
}

// 128 + the signal, or the exit code. alarm() is the watchdog.
static int end_of(pid_t pid)
{
    int status;
    alarm(300);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    alarm(0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run(const char *out, const char *order, const char *flags[])
{
    return end_of(start(out, order, flags));
}

static void file_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
}

static void assert_says(const char *path, const char *what)
{
    static char text[65536];
    file_text(path, text, sizeof text);
    if (!strstr(text, what))
        fail_msg("%s does not say '%s' but:\n%s", path, what, text);
}

static void assert_never_says(const char *path, const char *what)
{
    static char text[65536];
    file_text(path, text, sizeof text);
    if (strstr(text, what))
        fail_msg("%s says '%s':\n%s", path, what, text);
}

static void wait_file(const char *path)
{
    for (int i = 0; i < 30000 && access(path, F_OK); i++)
        clock_sleep_ms(2);
    assert_int_equal(access(path, F_OK), 0);
}

static const char *short_run[] = {"-s", "train.steps=20", NULL};

static void three_ranks_train_to_the_end(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_says("out", "rank 2 ended with 0\n");
    assert_int_equal(count_lines("run/metrics.jsonl"), 20);
    assert_says("run/metrics.jsonl", "\"step\":20,");
}

static void a_killed_rank_is_named_and_its_signal_is_the_end(void **state)
{
    (void)state;
    assert_int_equal(run("out", "kill:1:15", NULL), 128 + SIGKILL);
    assert_says("out", "rank 1 on host");
    assert_says("out", "step 15");
    assert_says("out", "ended with signal 9, killed");
    assert_int_equal(run("out", "kill:0:15", NULL), 128 + SIGKILL);
    assert_says("run/logs/rank-0002.log", "rank 0 on host here (running, step 15");
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_says("run/state", "attempt 3\n");
}

// Which survivor hears of it from the other, and how much of it, is chance: here both do.
static void survivors_name_the_dead_rank_and_not_who_said_so(void **state)
{
    (void)state;
    assert_int_equal(run("out", "repeat:1:15", NULL), 128 + SIGKILL);
    // A survivor hears of it from the connection or from the leader, whichever is faster.
    assert_says("run/logs/rank-0000.log", "rank 1 on host");
    assert_says("run/logs/rank-0002.log", "rank 1 on host");
    assert_never_says("run/logs/rank-0000.log", "lost a peer: rank 2");
    assert_never_says("run/logs/rank-0002.log", "lost a peer: rank 0");
    assert_never_says("out", "gave up");
}

static void a_failed_rank_ends_the_run_with_its_own_code(void **state)
{
    (void)state;
    assert_int_equal(run("out", "data:2:7", NULL), 65);
    assert_says("out", "the file x is too short");
    assert_int_equal(run("out", "data:0:9", NULL), 65);
    assert_says("out", "rank 0 ended with 65\n");
    assert_says("run/logs/rank-0001.log", "rank 2 on host");
}

static void a_stopped_rank_is_named_and_killed(void **state)
{
    (void)state;
    const char *soon[] = {"-s", "restart.hang_after=3s", NULL};
    assert_int_equal(run("out", "stop:1:15", soon), 69);
    assert_says("out", "rank 1 on host");
    assert_says("out", "hangs: no progress for");
    assert_int_equal(run("out", "stop:0:15", soon), 69);
    assert_says("run/logs/rank-0001.log", "rank 0 on host here (running, step 15");
    assert_says("out", "1 ranks did not end by themselves and are killed");
}

static void an_interrupt_stops_all_ranks_at_one_step(void **state)
{
    (void)state;
    pid_t pid = start("out", NULL, NULL);
    wait_file("run/metrics.jsonl");
    kill(pid, SIGINT);
    assert_int_equal(end_of(pid), 75);
    for (int rank = 0; rank < 3; rank++) {
        char ended[40];
        snprintf(ended, sizeof ended, "rank %d ended with 75\n", rank);
        assert_says("out", ended);
    }
}

static void a_killed_leader_takes_its_ranks_along(void **state)
{
    (void)state;
    pid_t pid = start("out", NULL, NULL);
    wait_file("run/metrics.jsonl");
    const struct progress_page *page = page_open("run/attempt-1/page-0000");
    assert_non_null(page);
    int rank = page->pid;
    page_close(page);
    assert_int_equal(kill(rank, 0), 0);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
    for (int i = 0; i < 10000 && !kill(rank, 0); i++)
        clock_sleep_ms(2);
    assert_int_not_equal(kill(rank, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
        CASE(three_ranks_train_to_the_end),
        CASE(a_killed_rank_is_named_and_its_signal_is_the_end),
        CASE(survivors_name_the_dead_rank_and_not_who_said_so),
        CASE(a_failed_rank_ends_the_run_with_its_own_code),
        CASE(a_stopped_rank_is_named_and_killed),
        CASE(an_interrupt_stops_all_ranks_at_one_step),
        CASE(a_killed_leader_takes_its_ranks_along),
    };
    built_program("tests/weft-rank-double", program);
    built_program("tests/lead-ranks", leader);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
