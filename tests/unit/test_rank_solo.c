// SPDX-License-Identifier: Apache-2.0
// Solo runs with real processes: weft-rank's true main around a double of training (rank_double.c).
// Who may use DIR, what happens when a rank dies, fails, stops or is asked to, and who is named.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dirent.h>

#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/folder.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/unit.h"

static char top[TEMP_FOLDER_MAX], program[PATH_MAX];

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
    if (temp_folder_make(top, "solo") || chdir(top))
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

// Starts the program with flags up to null; all its output goes to the file `out`.
static pid_t start(const char *out, const char *order, const char *flags[])
{
    const char *argv[24] = {program, "--solo", "run", "--job", "job.yaml"};
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
    execv(program, u.to);
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

static void wait_for_text(const char *path, const char *what)
{
    static char text[65536];
    for (int i = 0; i < 30000; i++, clock_sleep_ms(2)) {
        file_text(path, text, sizeof text);
        if (strstr(text, what))
            return;
    }
    assert_says(path, what);
}

static const char *short_run[] = {"-s", "train.steps=20", NULL};

static void three_ranks_train_to_the_end_and_say_where_everything_is(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_says("out", "done after 20 steps");
    assert_says("out", "accuracy 87.50 %");
    assert_says("out", "run/metrics.jsonl");
    assert_says("run/metrics.jsonl", "\"step\":20,");
    assert_says("run/job.yaml", "hang_after");
    assert_int_equal(stat("run", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_not_equal(access("run/epoch-1/sock", F_OK), 0);
    assert_int_not_equal(access("run/epoch-1/key", F_OK), 0);
}

static void a_killed_rank_is_named_and_its_signal_is_the_end(void **state)
{
    (void)state;
    assert_int_equal(run("out", "kill:1:15", NULL), 128 + SIGKILL);
    assert_says("out", "rank 1 on host");
    assert_says("out", "step 15");
    assert_says("out", "died");
    assert_int_equal(run("out", NULL, (const char *[]){"-s", "train.steps=2000", NULL}), 0);
    assert_says("run/state", "epoch 2\n");
}

// Which survivor hears of it from the other, and how much of it, is chance: here both do.
static void survivors_name_the_dead_rank_and_not_who_told_them(void **state)
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

static void a_killed_leader_is_named_by_the_others(void **state)
{
    (void)state;
    assert_int_equal(run("out", "kill:0:15", NULL), 128 + SIGKILL);
    assert_says("out", "lost rank 0 on host");
    assert_says("out", "step 15");
}

static void a_failed_rank_ends_the_run_with_its_own_code(void **state)
{
    (void)state;
    assert_int_equal(run("out", "data:2:7", NULL), 65);
    assert_says("out", "the file x is too short");
    assert_int_equal(run("out", "data:0:9", NULL), 65);
    assert_says("out", "ended with 65 (bad data, checkpoint or numbers)\n");
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
    assert_says("out", "lost rank 0 on host");
    assert_says("out", "it has said nothing for");
    assert_says("out", "step 15");
}

// Puts a true checkpoint of `step` into the run's checkpoint folder, as epoch 1 would have.
static void put_checkpoint(int64_t step)
{
    struct fixture f;
    struct store store;
    struct store_owner owner;
    struct err e = {0};
    char path[400] = "";
    DIR *d = opendir("ckpt");
    struct dirent *en;
    assert_non_null(d);
    while ((en = readdir(d)))
        if (!strncmp(en->d_name, "tiny-", 5))
            snprintf(path, sizeof path, "%s/ckpt/%s", top, en->d_name);
    closedir(d);
    fx_init(&f);
    assert_int_equal(store_open(&store, path, NULL), 0);
    struct store own = f.store;
    f.store = store;
    struct manifest m = fx_prepare(&f, 1, step);
    assert_int_equal(store_read_owner(&store, &f.arena, &owner, &e), 0);
    m.cluster = owner.cluster;
    m.job = owner.job;
    assert_int_equal(store_commit(&store, &m, &e), 0);
    f.store = own;
    fx_clear(&f);
    store_close(&store);
}

static void a_run_again_continues_from_its_newest_good_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    put_checkpoint(10);
    put_checkpoint(15);
    assert_int_equal(system("for f in ckpt/tiny-*/step-00000015.e1/shard-00001*; do "
                            "printf X | dd of=$f bs=1 seek=900 conv=notrunc status=none; done"),
                     0);
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_says("out", "checkpoint step-00000015.e1 is passed over");
    assert_says("run/state", "restore step-00000010.e1\n");
    assert_says("run/state", "epoch 2\n");
    assert_int_equal(count_lines("run/metrics.jsonl"), 20); // 10 kept, 10 new
}

static void a_checkpoint_that_is_not_used_is_told_and_a_forged_epoch_refused(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    put_checkpoint(10);
    assert_int_equal(system("cd ckpt/tiny-* && mkdir step-00000030.e100000000000000001"), 0);
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_says("out", "step-00000030.e100000000000000001 is not used: its name is none");
    assert_int_equal(system("cd ckpt/tiny-* && echo x >epoch-100000000000000000"), 0);
    assert_int_not_equal(run("out", NULL, short_run), 0);
    assert_says("out", "epoch-100000000000000000 is beyond epoch 1000000000");
}

static void a_finished_job_says_so_and_trains_no_more(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    put_checkpoint(20);
    assert_int_equal(run("out", "data:0:1", short_run), 0);
    assert_says("out", "the job is finished: step 20");
    assert_int_equal(count_lines("run/metrics.jsonl"), 20);
    // A rank that is started alone is told the same.
    const char *alone[] = {"-s", "train.steps=20", "--rank", "2", NULL};
    assert_int_equal(run("out", NULL, alone), 0);
}

static void an_interrupt_stops_all_ranks_at_one_step(void **state)
{
    (void)state;
    pid_t pid = start("out", NULL, NULL);
    wait_file("run/metrics.jsonl");
    kill(pid, SIGINT);
    assert_int_equal(end_of(pid), 75);
    assert_says("out", "run the same command again to continue");
}

static void a_second_run_in_the_same_place_is_refused_naming_the_pid(void **state)
{
    (void)state;
    char pid_text[64], want[100];
    pid_t pid = start("out", NULL, NULL);
    wait_file("run/metrics.jsonl");
    assert_int_equal(run("out2", NULL, (const char *[]){"--rank", "0", NULL}), 78);
    file_text("run/lock", pid_text, sizeof pid_text);
    snprintf(want, sizeof want, "is in use by pid %d\n", atoi(pid_text));
    assert_says("out2", want);
    assert_int_equal(kill(atoi(pid_text), 0), 0);
    kill(pid, SIGINT);
    assert_int_equal(end_of(pid), 75);
}

static void another_job_is_refused_until_it_is_said_to_be_new(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_int_equal(run("out", NULL, (const char *[]){"-s", "train.seed=21", NULL}), 78);
    assert_says("out", "belongs to another job, which differs in train.seed (");
    assert_int_equal(run("out", NULL, (const char *[]){"-s", "train.seed=21", "--new", NULL}), 0);
    assert_says("run/metrics.jsonl", "\"step\":20,");
    assert_says("run/old-1/metrics.jsonl", "\"step\":20,");
    assert_says("run/logs/rank-0000.log", "the old state is in");
}

static void the_same_job_on_another_mesh_goes_on(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, short_run), 0);
    assert_int_equal(run("out", NULL,
                         (const char *[]){"-s", "train.steps=20", "-s", "mesh={dp: 1}", "-s",
                                          "resources.devices=1", NULL}),
                     0);
    assert_says("out", "done after 20 steps");
    assert_says("run/logs/rank-0000.log", "on 1 ranks with a changed job: mesh from");
}

static void bad_flags_and_bad_jobs_end_with_78_before_anything_is_made(void **state)
{
    (void)state;
    assert_int_equal(run("out", NULL, (const char *[]){"--bogus", NULL}), 78);
    assert_says("out", "unknown flag, or a flag without its value: --bogus");
    assert_says("out", "see weft-rank --help");
    assert_int_equal(run("out", NULL, (const char *[]){"--rank", "3", NULL}), 78);
    assert_says("out", "the job's mesh has 3 devices: no rank 3");
    assert_int_equal(run("out", NULL, (const char *[]){"--of", "2", NULL}), 78);
    assert_says("out", "3 devices, --of says 2");
    assert_int_equal(
        run("out", NULL, (const char *[]){"-s", "train.step=1", "-s", "mesh.dp=no", NULL}), 78);
    assert_says("out", "train.step"); // both of them
    assert_says("out", "mesh.dp");
    assert_int_not_equal(access("run", F_OK), 0);
}

static void ranks_of_other_hosts_join_over_tcp_in_any_order(void **state)
{
    (void)state;
    pid_t pid[3];
    const char *out[] = {"out0", "out1", "out2"}, *rank[] = {"0", "1", "2"};
    for (int r = 2; r >= 0; r--) {
        const char *flags[] = {"--rank",      rank[r], "--host",         r ? "b" : "a", "--listen",
                               "127.0.0.1:0", "-s",    "train.steps=20", NULL};
        pid[r] = start(out[r], NULL, flags);
    }
    for (int r = 0; r < 3; r++)
        assert_int_equal(end_of(pid[r]), 0);
    assert_says("out0", "done after 20 steps");
}

// The rank binary here trains nothing: its threads are those of the resolved job in DIR.
static void expect_threads(int threads)
{
    char line[40], text[20000];
    struct err e = {0};
    snprintf(line, sizeof line, "  threads: %d\n", threads);
    assert_int_equal(folder_read("run", "job.yaml", text, sizeof text, &e), 0);
    assert_non_null(strstr(text, line));
}

static void a_run_whose_job_names_no_threads_shares_the_cores_out_once(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    const char *flags[] = {
        "-s", "train.steps=3", "-s", "mesh={dp: 1}", "-s", "resources.devices=1", NULL, NULL, NULL};
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(run("out", NULL, flags), 0);
    expect_threads(1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    flags[1] = "train.steps=5";
    assert_int_equal(run("out", NULL, flags), 0);
    expect_threads(1); // as it was begun
    flags[6] = "--new";
    assert_int_equal(run("out", NULL, flags), 0);
    expect_threads(cores_within_quota("", CPU_COUNT(&all)));
    flags[6] = "-s", flags[7] = "resources.threads=3";
    flags[1] = "train.steps=7";
    assert_int_equal(run("out", NULL, flags), 0);
    expect_threads(3);
}

// Two ranks on hosts of their own, the second kept to the cores of `second`.
static void run_on_two_hosts(const cpu_set_t *all, const cpu_set_t *second, const char *steps)
{
    pid_t pid[2];
    const char *rank[] = {"0", "1"}, *host[] = {"a", "b"}, *out[] = {"out0", "out1"};
    for (int r = 0; r < 2; r++) {
        const char *flags[] = {
            "--rank", rank[r], "--host", host[r],        "--listen", "127.0.0.1:0",
            "-s",     steps,   "-s",     "mesh={dp: 2}", "-s",       "resources.devices=2",
            "--new",  NULL};
        assert_int_equal(sched_setaffinity(0, sizeof *all, r ? second : all), 0);
        pid[r] = start(out[r], NULL, flags);
        assert_int_equal(sched_setaffinity(0, sizeof *all, all), 0);
    }
    for (int r = 0; r < 2; r++)
        assert_int_equal(end_of(pid[r]), 0);
}

static void ranks_of_several_hosts_use_what_the_poorest_has(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int cores = cores_within_quota("", CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    run_on_two_hosts(&all, &all, "train.steps=3");
    expect_threads(cores);
    assert_says("out0", "of host a, divided by 1 rank");
    run_on_two_hosts(&all, &one, "train.steps=4");
    expect_threads(1);
}

static void ranks_with_different_folders_say_where_they_wait_and_for_whom(void **state)
{
    (void)state;
    pid_t zero = start("out0", NULL, (const char *[]){"--rank", "0", NULL});
    pid_t one = start("out1", NULL, (const char *[]){"--rank", "1", "--solo", "other", NULL});
    wait_for_text("out0", "missing: 1 2; ");
    wait_for_text("out1", "waiting for rank 0 in ");
    assert_says("out0", "/run: 1 of 3 ranks have joined");
    assert_says("out1", "/other: rank 0 has not published its address");
    kill(zero, SIGTERM);
    kill(one, SIGTERM);
    assert_int_equal(end_of(zero), 75);
    assert_int_equal(end_of(one), 75);
}

static void a_killed_parent_takes_its_ranks_along(void **state)
{
    (void)state;
    char text[64];
    pid_t pid = start("out", NULL, NULL);
    wait_file("run/metrics.jsonl");
    file_text("run/lock", text, sizeof text);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
    for (int i = 0; i < 10000 && !kill(atoi(text), 0); i++)
        clock_sleep_ms(2);
    assert_int_not_equal(kill(atoi(text), 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
        CASE(three_ranks_train_to_the_end_and_say_where_everything_is),
        CASE(a_killed_rank_is_named_and_its_signal_is_the_end),
        CASE(survivors_name_the_dead_rank_and_not_who_told_them),
        CASE(a_killed_leader_is_named_by_the_others),
        CASE(a_failed_rank_ends_the_run_with_its_own_code),
        CASE(a_stopped_rank_is_named_and_killed),
        CASE(a_run_again_continues_from_its_newest_good_checkpoint),
        CASE(a_checkpoint_that_is_not_used_is_told_and_a_forged_epoch_refused),
        CASE(a_finished_job_says_so_and_trains_no_more),
        CASE(an_interrupt_stops_all_ranks_at_one_step),
        CASE(a_second_run_in_the_same_place_is_refused_naming_the_pid),
        CASE(another_job_is_refused_until_it_is_said_to_be_new),
        CASE(the_same_job_on_another_mesh_goes_on),
        CASE(bad_flags_and_bad_jobs_end_with_78_before_anything_is_made),
        CASE(ranks_of_other_hosts_join_over_tcp_in_any_order),
        CASE(a_run_whose_job_names_no_threads_shares_the_cores_out_once),
        CASE(ranks_of_several_hosts_use_what_the_poorest_has),
        CASE(ranks_with_different_folders_say_where_they_wait_and_for_whom),
        CASE(a_killed_parent_takes_its_ranks_along),
    };
    built_program("tests/weft-rank-double", program);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
