// SPDX-License-Identifier: Apache-2.0
// Ranks under an agent: the true weft-rank with its backend, over socket pairs to the leader of
// worker/local_leader.h.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/ckpt/store.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/datafile.h"
#include "tests/unit/scratch.h"
#include "tests/unit/unit.h"
#include "worker/local_leader.h"

enum { RANKS = 2, SAMPLES = 64, ATTEMPT = 4, WATCHDOG_S = 120 };

static char top[TEMP_FOLDER_MAX], program[PATH_MAX];
static const struct store_owner owner = {"cluster-a", "0123456789abcdef", "tiny", "steps: 10\n", 0};

struct agent {
    struct local_leader lead;
    pid_t pid[RANKS];
    Weft__Rank__Assign assign;
    struct store store;
    char job[1500], metrics[100], path[1100];
};

static void write_file(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static int make_top(void **state)
{
    struct buf images = {0}, labels = {0};
    (void)state;
    if (temp_folder_make(top, "agent") || chdir(top) || mkdir("data", 0700) ||
        mkdir("attempt", 0700))
        return -1;
    idx_header(&images, 8, 2, (uint32_t[]){SAMPLES, 4});
    idx_header(&labels, 8, 1, (uint32_t[]){SAMPLES});
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < 4; k++)
            buf_putc(&images, (char)((i * 7 + k * 13) % 256));
        buf_putc(&labels, (char)(i % 2));
    }
    write_file("data/images", images.data, images.len);
    write_file("data/labels", labels.data, labels.len);
    buf_clear(&images);
    buf_clear(&labels);
    return 0;
}

static int remove_top(void **state)
{
    (void)state;
    return chdir("/") || temp_folder_remove(top);
}

// ---- the agent ----

static void agent_init(struct agent *a, int ranks, int steps)
{
    static unsigned char key[32] = {1};
    static char id[] = "00112233445566778899aabbccddeeff";
    Weft__Rank__Assign *s = &a->assign;
    memset(a, 0, sizeof *a);
    snprintf(a->job, sizeof a->job,
             "name: tiny\n"
             "model: {program: mlp, inputs: 4, hidden: [8], classes: 2}\n"
             "mesh: {dp: %d}\n"
             "data: {format: idx, train: {images: data/images, labels: data/labels}, batch: 8}\n"
             "optimizer: {kind: sgd}\n"
             "schedule: {kind: constant, value: 0.1}\n"
             "train: {steps: %d, seed: 1}\n"
             "checkpoint: {dir: ckpt}\n",
             ranks, steps);
    assert_int_equal(store_make(&a->store, NULL, "ckpt", &owner, NULL), 0);
    snprintf(a->metrics, sizeof a->metrics, "%s/rows.jsonl", top);
    snprintf(a->path, sizeof a->path, "%s/%s", top, a->store.path);
    weft__rank__assign__init(s);
    s->attempt = ATTEMPT;
    s->job_text = a->job;
    s->job_hash = s->job_id = s->cluster_id = s->attempt_id = s->run_id = id;
    s->key.data = key;
    s->key.len = sizeof key;
    s->store = a->path;
    s->hang_after_ns = 60 * CLOCK_S;
    s->base_dir = top;
    s->metrics = a->metrics;
    struct leader_config c = {
        .ranks = ranks, .hang_after_ns = 60 * CLOCK_S, .join_ns = 600 * CLOCK_S};
    local_leader_init(&a->lead, &c, s, "attempt");
    local_leader_fence(&a->lead, NULL, 0);
}

// All ranks' paths lie beneath these roots; null: anywhere.
static void agent_confine(struct agent *a, char *data_root, char *checkpoint_root)
{
    for (int r = 0; r < a->lead.n; r++) {
        Weft__Rank__Assign *s = &a->lead.ranks[r].assign;
        s->base_dir = data_root ? frame_text("") : s->base_dir;
        s->data_root = frame_text(data_root);
        s->checkpoint_root = frame_text(checkpoint_root);
    }
}

// A rank as an agent starts it: its end of a socket pair inherited, everything else closed.
static pid_t spawn(int fd, int rank, int parent, const char *out)
{
    char number[16], pid_text[16], rank_text[16];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    snprintf(number, sizeof number, "%d", fd);
    snprintf(pid_text, sizeof pid_text, "%d", parent);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    fcntl(fd, F_SETFD, 0);
    int log = open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, 1);
    dup2(log, 2);
    execl(program, program, "--fd", number, "--dir", "attempt", "--parent", pid_text, "--host",
          "here", "--rank", rank_text, (char *)NULL);
    _exit(127);
}

static void agent_spawn(struct agent *a)
{
    for (int r = 0; r < a->lead.n; r++) {
        int fd = local_leader_connect(&a->lead, r);
        a->pid[r] = spawn(fd, r, (int)getpid(), "out");
        a->lead.ranks[r].pid = a->pid[r];
        close(fd);
    }
}

// Serves until `done` is true; without one, until every rank has hung up.
static void serve(struct agent *a, bool (*done)(const struct agent *))
{
    alarm(WATCHDOG_S);
    while ((!done || !done(a)) && local_leader_is_open(&a->lead))
        local_leader_turn(&a->lead, 100);
    alarm(0);
}

static int end_of(pid_t pid)
{
    int status;
    alarm(WATCHDOG_S);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    alarm(0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void assert_all_end(struct agent *a, int code)
{
    for (int r = 0; r < a->lead.n; r++) {
        int got = end_of(a->pid[r]);
        if (got != code)
            (void)!system("cat out");
        assert_int_equal(got, code);
    }
}

static void agent_clear(struct agent *a)
{
    local_leader_clear(&a->lead);
    store_close(&a->store);
}

static bool has_stepped(const struct agent *a)
{
    return a->lead.stepped > 0;
}

static int64_t newest_step(struct agent *a)
{
    struct arena arena;
    struct store_entry *list;
    int n;
    arena_init(&arena);
    assert_int_equal(store_scan(&a->store, &arena, &list, &n, NULL), 0);
    int64_t step = n ? list[0].step : 0;
    arena_clear(&arena);
    return step;
}

static void assert_says(const char *path, const char *what)
{
    char text[16384];
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    if (!strstr(text, what))
        fail_msg("%s does not say '%s' but:\n%s", path, what, text);
}

// ---- cases ----

static void two_ranks_train_to_the_end_under_an_agent(void **state)
{
    (void)state;
    struct agent a;
    agent_init(&a, 2, 20);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DONE);
    assert_int_equal(a.lead.ranks[0].exit_code, RANK_EXIT_DONE);
    assert_int_equal(a.lead.ranks[1].exit_code, RANK_EXIT_DONE);
    assert_int_equal(a.lead.committed, 20);
    assert_int_equal(newest_step(&a), 20);
    assert_int_equal(count_lines("rows.jsonl"), 20);
    assert_int_equal(access("attempt/page-0000", F_OK), 0);
    assert_int_equal(access("attempt/page-0001", F_OK), 0);
    agent_clear(&a);
}

static void the_end_of_its_descriptor_ends_a_rank_with_69(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++) { // alone it has no peer to lose either
        struct agent a;
        agent_init(&a, ranks, 100000000);
        agent_spawn(&a);
        serve(&a, has_stepped);
        for (int r = 0; r < ranks; r++)
            local_leader_hang_up(&a.lead, r);
        assert_all_end(&a, RANK_EXIT_LOST);
        assert_says("out", "lost the agent: ");
        agent_clear(&a);
        assert_int_equal(system("rm -rf attempt/* out rows.jsonl"), 0);
    }
}

static void a_stop_of_the_agent_drains_all_ranks_at_one_step(void **state)
{
    (void)state;
    struct agent a;
    agent_init(&a, 2, 100000000);
    agent_spawn(&a);
    serve(&a, has_stepped);
    local_leader_stop(&a.lead, "a test asks");
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DRAINED);
    assert_int_equal(a.lead.ranks[0].exit_code, RANK_EXIT_DRAINED);
    assert_true(a.lead.committed > 0);
    assert_int_equal(newest_step(&a), a.lead.committed);
    agent_clear(&a);
}

static void a_rank_whose_attempt_is_over_does_not_begin(void **state)
{
    (void)state;
    struct agent a;
    int64_t greatest;
    agent_init(&a, 2, 20);
    assert_int_equal(store_fence(&a.store, ATTEMPT + 1, "a newer attempt", &greatest, NULL), 0);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_LOST);
    assert_non_null(strstr(a.lead.ranks[0].why, "attempt 4 is over: attempt 5 has begun"));
    assert_int_equal(a.lead.committed, -1);
    agent_clear(&a);
}

static void paths_of_a_job_stay_beneath_the_assigned_roots(void **state)
{
    (void)state;
    struct agent a;
    agent_init(&a, 2, 20);
    agent_confine(&a, top, top);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DONE);
    agent_clear(&a);
    // The same job, its data now a link outwards.
    assert_int_equal(system("rm -rf attempt/* out ckpt; mkdir root; ln -s ../data root/data"), 0);
    char root[80];
    snprintf(root, sizeof root, "%s/root", top);
    agent_init(&a, 2, 20);
    agent_confine(&a, root, NULL);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_ABSENT);
    assert_says("out", "path 'data/images' leaves the root ");
    agent_clear(&a);
    // Its checkpoints elsewhere than beneath their root.
    assert_int_equal(system("rm -rf attempt/* out"), 0);
    agent_init(&a, 2, 20);
    agent_confine(&a, NULL, root);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_CONFIG);
    assert_says("out", "leaves the root ");
    agent_clear(&a);
}

static void a_rank_whose_parent_is_another_ends_at_once(void **state)
{
    (void)state;
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(end_of(spawn(sv[1], 0, (int)getppid(), "out")), RANK_EXIT_LOST);
    close(sv[1]);
    char byte;
    assert_int_equal(recv(sv[0], &byte, 1, 0), 0); // it said nothing
    close(sv[0]);
}

static void write_script(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
    assert_int_equal(chmod(name, 0700), 0);
}

// A shim for one rank: it sees which one it stands before, and the rank takes its place.
static void a_wrapper_stands_before_each_ranks_command_line(void **state)
{
    (void)state;
    struct agent a;
    write_script("wrap", "#!/bin/sh\n"
                         "echo \"wrapped with $1:$*\"\nshift\n"
                         "case \" $* \" in *\" --rank 1 \"*) echo 'this is the second';; esac\n"
                         "exec \"$@\"\n");
    setenv("WEFT_RANK_WRAPPER", " ./wrap  -x ", 1);
    agent_init(&a, 2, 20);
    agent_spawn(&a);
    unsetenv("WEFT_RANK_WRAPPER");
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DONE);
    assert_int_equal(newest_step(&a), 20);
    assert_says("out", "wrapped with -x:-x ");
    assert_says("out", "--rank 0");
    assert_says("out", "this is the second");
    agent_clear(&a);
    setenv("WEFT_RANK_WRAPPER", "./nothing-like-that", 1);
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(end_of(spawn(sv[1], 0, (int)getpid(), "out")), RANK_EXIT_CONFIG);
    unsetenv("WEFT_RANK_WRAPPER");
    assert_says("out", "cannot start WEFT_RANK_WRAPPER './nothing-like-that'");
    close(sv[0]);
    close(sv[1]);
}

// As a debugger does: the rank is the wrapper's child, and dies with it.
static void a_rank_dies_with_the_wrapper_that_started_it(void **state)
{
    (void)state;
    struct agent a;
    char pid[32] = "";
    write_script("wrap", "#!/bin/sh\n\"$@\" &\necho $! >pid\nwait\n");
    setenv("WEFT_RANK_WRAPPER", "./wrap", 1);
    agent_init(&a, 1, 100000000);
    agent_spawn(&a);
    unsetenv("WEFT_RANK_WRAPPER");
    serve(&a, has_stepped);
    FILE *f = fopen("pid", "re");
    assert_non_null(f);
    assert_non_null(fgets(pid, sizeof pid, f));
    fclose(f);
    assert_int_not_equal(atoi(pid), a.pid[0]);
    assert_int_equal(kill(atoi(pid), 0), 0);
    assert_int_equal(kill(a.pid[0], SIGKILL), 0);
    serve(&a, NULL); // its socket closes with it
    assert_int_equal(end_of(a.pid[0]), 128 + SIGKILL);
    assert_int_equal(a.lead.ranks[0].exit_code, -1); // it could not even say so
    agent_clear(&a);
}

static void a_descriptor_that_is_no_socket_is_a_bad_configuration(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(end_of(spawn(fd, 0, (int)getpid(), "out")), RANK_EXIT_CONFIG);
    assert_says("out", "is not a stream socket");
    close(fd);
}

static void a_probe_prints_the_devices_as_json(void **state)
{
    (void)state;
    char line[4300], text[4096];
    struct arena arena;
    struct json *doc;
    const char *kind;
    arena_init(&arena);
    snprintf(line, sizeof line, "%s --probe --kind cpu --devices 2 >probe 2>/dev/null", program);
    assert_int_equal(system(line), 0);
    assert_int_equal(count_lines("probe"), 1);
    FILE *f = fopen("probe", "re");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_int_equal(json_parse(&arena, text, n, &doc, NULL), 0);
    assert_int_equal(json_get_str(doc, "kind", &kind, NULL), 0);
    assert_string_equal(kind, "cpu");
    text[n - 1] = 0;
    assert_non_null(strstr(text, "\"index\":1,\"model\":\"cpu\",\"memory\":"));
    arena_clear(&arena);
    snprintf(line, sizeof line, "%s --probe --kind nothing 2>probe", program);
    int status = system(line);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), RANK_EXIT_DEVICE);
    assert_says("probe", "libweft_nothing.so");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
        CASE(two_ranks_train_to_the_end_under_an_agent),
        CASE(the_end_of_its_descriptor_ends_a_rank_with_69),
        CASE(a_stop_of_the_agent_drains_all_ranks_at_one_step),
        CASE(a_rank_whose_attempt_is_over_does_not_begin),
        CASE(paths_of_a_job_stay_beneath_the_assigned_roots),
        CASE(a_rank_whose_parent_is_another_ends_at_once),
        CASE(a_wrapper_stands_before_each_ranks_command_line),
        CASE(a_rank_dies_with_the_wrapper_that_started_it),
        CASE(a_descriptor_that_is_no_socket_is_a_bad_configuration),
        CASE(a_probe_prints_the_devices_as_json),
    };
    built_program("weft-rank", program);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
