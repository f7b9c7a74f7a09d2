// SPDX-License-Identifier: Apache-2.0
// Ranks under an agent: the true weft-rank with its backend, over socket pairs to a small agent
// played here with a leader.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader.h"
#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/ckpt/store.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/datafile.h"
#include "tests/unit/scratch.h"
#include "tests/unit/unit.h"

enum { RANKS = 2, SAMPLES = 64, EPOCH = 4, WATCHDOG_S = 120 };

static char top[TEMP_FOLDER_MAX], program[PATH_MAX];
static const struct store_owner owner = {"cluster-a", "0123456789abcdef", "tiny", "steps: 10\n"};

struct agent {
    int ranks;
    pid_t pid[RANKS];
    struct frame_conn conn[RANKS];
    bool open[RANKS], greeted[RANKS];
    struct leader *leader;
    int64_t committed, stepped;
    int exit_code[RANKS]; // of the Exit frame, −1: none came
    char why[RANKS][400];
    const char *data_root, *checkpoint_root; // assigned
    struct store store;
    char job[1500], metrics[100];
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

static void send_rank(struct agent *a, int rank, const Weft__Rank__Frame *f)
{
    if (!a->open[rank])
        return;
    assert_int_equal(frame_queue(&a->conn[rank], f, NULL), 0);
    (void)frame_flush(&a->conn[rank], NULL); // what it does not take leaves with the next
}

static void lead(struct agent *a, struct leader_event ev)
{
    struct arena arena;
    struct leader_out out = {.arena = &arena};
    arena_init(&arena);
    ev.now_ns = clock_mono_ns();
    leader_step(a->leader, &ev, &out);
    for (int i = 0; i < out.n; i++) {
        const struct leader_action *x = &out.v[i];
        for (int r = 0; r < a->ranks && x->kind == LEADER_SEND; r++)
            if (x->rank < 0 || x->rank == r)
                send_rank(a, r, x->frame);
        if (x->kind == LEADER_REPORT)
            a->stepped = x->report->step;
        if (x->kind == LEADER_COMMITTED)
            a->committed = x->id.step;
    }
    arena_clear(&arena);
}

static void agent_init(struct agent *a, int ranks, int steps)
{
    memset(a, 0, sizeof *a);
    a->ranks = ranks;
    a->committed = -1;
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
    snprintf(a->metrics, sizeof a->metrics, "%s/rows.jsonl", top);
    a->leader = leader_new(&(struct leader_config){.ranks = ranks, .join_ns = 600 * CLOCK_S},
                           clock_mono_ns());
    lead(a, (struct leader_event){.kind = LEADER_EV_FENCED, .epoch = EPOCH});
    assert_int_equal(store_make(&a->store, "ckpt", &owner, NULL), 0);
}

// A rank as an agent starts it: its end of a socket pair inherited, everything else closed.
static pid_t spawn(int fd, int parent, const char *out)
{
    char number[16], pid_text[16];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    snprintf(number, sizeof number, "%d", fd);
    snprintf(pid_text, sizeof pid_text, "%d", parent);
    fcntl(fd, F_SETFD, 0);
    int log = open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, 1);
    dup2(log, 2);
    execl(program, program, "--fd", number, "--dir", "attempt", "--parent", pid_text, "--host",
          "here", (char *)NULL);
    _exit(127);
}

static void agent_spawn(struct agent *a)
{
    for (int r = 0; r < a->ranks; r++) {
        int sv[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
        frame_conn_init(&a->conn[r], sv[0]);
        a->open[r] = true;
        a->exit_code[r] = -1;
        a->pid[r] = spawn(sv[1], (int)getpid(), "out");
        close(sv[1]);
    }
}

static void assign(struct agent *a, int rank)
{
    unsigned char key[32] = {1};
    char id[] = "00112233445566778899aabbccddeeff";
    char store[1100];
    snprintf(store, sizeof store, "%s/%s", top, a->store.path);
    FRAME_BODY(body, Assign, assign);
    body.rank = rank;
    body.ranks = a->ranks;
    body.epoch = EPOCH;
    body.job_text = a->job;
    body.job_hash = body.job_id = body.cluster_id = body.attempt_id = body.run_id = id;
    body.key.data = key;
    body.key.len = sizeof key;
    body.store = store;
    body.hang_after_ns = 60 * CLOCK_S;
    body.base_dir = a->data_root ? body.base_dir : top;
    body.metrics = rank == 0 ? a->metrics : body.metrics;
    body.data_root = frame_text(a->data_root);
    body.checkpoint_root = frame_text(a->checkpoint_root);
    FRAME(f, ASSIGN, assign, &body);
    send_rank(a, rank, &f);
}

static void on_hello(struct agent *a, int rank, const Weft__Rank__Hello *h)
{
    assert_false(a->greeted[rank]);
    assert_int_equal(h->version, FRAME_VERSION);
    assert_int_equal(h->pid, a->pid[rank]);
    assert_string_equal(h->host, "here");
    a->greeted[rank] = true;
    assign(a, rank);
}

static void on_frame(struct agent *a, int r, Weft__Rank__Frame *f)
{
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_HELLO:
        on_hello(a, r, f->hello);
        break;
    case WEFT__RANK__FRAME__BODY_EXIT:
        a->exit_code[r] = f->exit->code;
        snprintf(a->why[r], sizeof a->why[r], "%s", f->exit->why);
        break;
    default:
        assert_true(leader_hears(f));
        lead(a, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = r, .frame = f});
    }
    weft__rank__frame__free_unpacked(f, NULL);
}

static void agent_hang_up(struct agent *a, int rank)
{
    frame_conn_clear(&a->conn[rank]);
    a->open[rank] = false;
}

// Serves until `done` is true; without one, until every rank has hung up.
static void serve(struct agent *a, bool (*done)(const struct agent *))
{
    alarm(WATCHDOG_S);
    while (!done || !done(a)) {
        struct pollfd p[RANKS];
        int any = 0;
        for (int r = 0; r < a->ranks; r++) {
            p[r] = (struct pollfd){.fd = a->open[r] ? a->conn[r].fd : -1, .events = POLLIN};
            any += a->open[r];
        }
        if (!any)
            break;
        assert_true(poll(p, (nfds_t)a->ranks, 1000) >= 0);
        for (int r = 0; r < a->ranks; r++) {
            Weft__Rank__Frame *f;
            if (!p[r].revents)
                continue;
            int end = frame_fill(&a->conn[r], NULL);
            while (a->open[r] && !frame_next(&a->conn[r], &f, NULL) && f)
                on_frame(a, r, f);
            if (end)
                agent_hang_up(a, r);
        }
    }
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
    for (int r = 0; r < a->ranks; r++) {
        int got = end_of(a->pid[r]);
        if (got != code)
            (void)!system("cat out");
        assert_int_equal(got, code);
    }
}

static void agent_clear(struct agent *a)
{
    for (int r = 0; r < a->ranks; r++)
        frame_conn_clear(&a->conn[r]);
    leader_free(a->leader);
    store_close(&a->store);
}

static bool has_stepped(const struct agent *a)
{
    return a->stepped > 0;
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

// ---- the stories ----

static void two_ranks_train_to_the_end_under_an_agent(void **state)
{
    (void)state;
    struct agent a;
    agent_init(&a, 2, 20);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DONE);
    assert_int_equal(a.exit_code[0], RANK_EXIT_DONE);
    assert_int_equal(a.exit_code[1], RANK_EXIT_DONE);
    assert_int_equal(a.committed, 20);
    assert_int_equal(newest_step(&a), 20);
    assert_int_equal(count_lines("rows.jsonl"), 20);
    assert_int_equal(access("attempt/page-0000", F_OK), 0);
    assert_int_equal(access("attempt/page-0001", F_OK), 0);
    // Nothing of a solo run is there.
    assert_int_not_equal(access("attempt/lock", F_OK), 0);
    assert_int_not_equal(access("attempt/state", F_OK), 0);
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
            agent_hang_up(&a, r);
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
    FRAME_BODY(body, Stop, stop);
    FRAME(f, STOP, stop, &body);
    for (int r = 0; r < 2; r++)
        send_rank(&a, r, &f);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DRAINED);
    assert_int_equal(a.exit_code[0], RANK_EXIT_DRAINED);
    assert_true(a.committed > 0);
    assert_int_equal(newest_step(&a), a.committed);
    agent_clear(&a);
}

static void a_rank_whose_epoch_is_over_does_not_begin(void **state)
{
    (void)state;
    struct agent a;
    int64_t greatest;
    agent_init(&a, 2, 20);
    assert_int_equal(store_fence(&a.store, EPOCH + 1, "a newer attempt", &greatest, NULL), 0);
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_LOST);
    assert_non_null(strstr(a.why[0], "epoch 4 is over: epoch 5 has begun"));
    assert_int_equal(a.committed, -1);
    agent_clear(&a);
}

static void paths_of_a_job_stay_beneath_the_assigned_roots(void **state)
{
    (void)state;
    struct agent a;
    agent_init(&a, 2, 20);
    a.data_root = a.checkpoint_root = top;
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_DONE);
    agent_clear(&a);
    // The same job, its data now a link outwards.
    assert_int_equal(system("rm -rf attempt/* out ckpt; mkdir root; ln -s ../data root/data"), 0);
    char root[80];
    snprintf(root, sizeof root, "%s/root", top);
    agent_init(&a, 2, 20);
    a.data_root = root;
    agent_spawn(&a);
    serve(&a, NULL);
    assert_all_end(&a, RANK_EXIT_ABSENT);
    assert_says("out", "path 'data/images' leaves the root ");
    agent_clear(&a);
    // Its checkpoints elsewhere than beneath their root.
    assert_int_equal(system("rm -rf attempt/* out"), 0);
    agent_init(&a, 2, 20);
    a.checkpoint_root = root;
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
    assert_int_equal(end_of(spawn(sv[1], (int)getppid(), "out")), RANK_EXIT_LOST);
    close(sv[1]);
    char byte;
    assert_int_equal(recv(sv[0], &byte, 1, 0), 0); // it said nothing
    close(sv[0]);
}

static void a_descriptor_that_is_no_socket_is_a_bad_configuration(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(end_of(spawn(fd, (int)getpid(), "out")), RANK_EXIT_CONFIG);
    assert_says("out", "is not a stream socket");
    close(fd);
}

static void a_probe_tells_the_devices_as_json(void **state)
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
        CASE(a_rank_whose_epoch_is_over_does_not_begin),
        CASE(paths_of_a_job_stay_beneath_the_assigned_roots),
        CASE(a_rank_whose_parent_is_another_ends_at_once),
        CASE(a_descriptor_that_is_no_socket_is_a_bad_configuration),
        CASE(a_probe_tells_the_devices_as_json),
    };
    built_program("weft-rank", program);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
