// SPDX-License-Identifier: Apache-2.0
// The true weft-worker against a coordinator played here, over a Unix socket, with this program as
// its ranks: registering, running, draining, being fenced, and dying.
#include <limits.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/rpc/rpc.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/agent_double.h"
#include "tests/unit/unit.h"
#include "worker/worker_daemon.h"

#define UP(x) WEFT__V1__UP__BODY_##x
enum { WATCHDOG_S = 60 };

struct rig {
    char dir[64], address[100], state[100], program[PATH_MAX], self[PATH_MAX];
    struct rpc *rpc;
    struct rpc_server *server;
    uint64_t call;
    int worker;
    char incarnation[40], host[40];
};

// ---- the worker ----

static void start_worker(struct rig *r)
{
    r->worker = fork();
    if (r->worker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(r->program, r->program, "--coordinator", r->address, "--state", r->state, "--rank",
              r->self, "--cpu-devices", "2", "--grace", "30s", "--name", "host-a", (char *)NULL);
        _exit(127);
    }
}

static int wait_worker(struct rig *r)
{
    int status = 0, pidfd = r->worker;
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    while (waitpid(pidfd, &status, WNOHANG) == 0) {
        struct rpc_event ev;
        assert_true(clock_mono_ns() < watchdog);
        (void)rpc_wait(r->rpc, 10 * CLOCK_MS);
        while (rpc_next(r->rpc, &ev)) {
            if (ev.kind == RPC_MESSAGE)
                rpc_more(r->rpc, ev.call);
            if (ev.kind == RPC_END)
                rpc_finish(r->rpc, ev.call, RPC_OK, "");
            rpc_event_clear(&ev);
        }
    }
    r->worker = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// ---- the coordinator ----

// The next message of a kind, others passed over; to be freed.
static Weft__V1__Up *hear(struct rig *r, int kind)
{
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    for (;;) {
        struct rpc_event ev;
        Weft__V1__Up *up = NULL;
        if (clock_mono_ns() > watchdog)
            fail_msg("waited in vain for message %d", kind);
        if (!rpc_wait(r->rpc, CLOCK_S) || !rpc_next(r->rpc, &ev))
            continue;
        if (ev.kind == RPC_CALL)
            r->call = ev.call;
        if (ev.kind == RPC_MESSAGE && ev.call == r->call) {
            up = (Weft__V1__Up *)(void *)rpc_event_take(&ev);
            rpc_more(r->rpc, ev.call);
        }
        if (ev.kind == RPC_END)
            rpc_finish(r->rpc, ev.call, RPC_OK, "");
        rpc_event_clear(&ev);
        if (up && (int)up->body_case == kind)
            return up;
        if (up)
            weft__v1__up__free_unpacked(up, NULL);
    }
}

static void pass(struct rig *r, int kind)
{
    weft__v1__up__free_unpacked(hear(r, kind), NULL);
}

#define SAY(r, CASE, Type, type, member, ...)                                  \
    do {                                                                       \
        Weft__V1__##Type body_;                                                \
        Weft__V1__Down down_;                                                  \
        weft__v1__##type##__init(&body_);                                      \
        weft__v1__down__init(&down_);                                          \
        struct Weft__V1__##Type *m = &body_;                                   \
        __VA_ARGS__;                                                           \
        down_.body_case = WEFT__V1__DOWN__BODY_##CASE;                         \
        down_.member = m;                                                      \
        assert_int_equal(rpc_send((r)->rpc, (r)->call, &down_.base, NULL), 0); \
    } while (0)

static char *text(const char *s)
{
    return frame_text(s);
}

static void welcome(struct rig *r)
{
    Weft__V1__Up *up = hear(r, UP(HELLO));
    SAY(r, CHALLENGE, Challenge, challenge, challenge, m->cluster = text("c1"),
        m->nonce = text("nonce"));
    weft__v1__up__free_unpacked(up, NULL);
    up = hear(r, UP(REGISTER));
    assert_string_equal(up->register_->nonce, "nonce");
    assert_int_equal(up->register_->n_devices, 2);
    assert_string_equal(up->register_->devices[0]->model, "double");
    snprintf(r->incarnation, sizeof r->incarnation, "%s", up->register_->incarnation);
    snprintf(r->host, sizeof r->host, "%s", up->register_->host);
    weft__v1__up__free_unpacked(up, NULL);
    SAY(r, REGISTERED, Registered, registered, registered, m->cluster = text("c1"),
        m->lease_ms = 10000, m->heartbeat_ms = 200);
    pass(r, UP(HEARTBEAT));
}

static void start_ranks(struct rig *r, const char *does)
{
    Weft__V1__RankPlace place[2], *places[2] = {&place[0], &place[1]};
    Weft__Rank__Assign assign;
    weft__rank__assign__init(&assign);
    assign.job_text = text(does);
    for (int i = 0; i < 2; i++) {
        weft__v1__rank_place__init(&place[i]);
        place[i].rank = place[i].device = i;
    }
    SAY(r, START, Start, start, start, m->job = text("job1"), m->attempt = 1,
        m->incarnation = r->incarnation, m->n_ranks = 2, m->ranks = places, m->assign = &assign,
        m->kind = text("cpu"));
}

static void hear_ready(struct rig *r) // of both ranks
{
    for (int i = 0; i < 2; i++) {
        Weft__V1__Up *up = hear(r, UP(FRAME));
        assert_int_equal(up->frame->frame->body_case, WEFT__RANK__FRAME__BODY_READY);
        weft__v1__up__free_unpacked(up, NULL);
    }
}

static int rank_pid(struct rig *r)
{
    int pid = 0;
    while (!pid) {
        Weft__V1__Up *up = hear(r, UP(HEARTBEAT));
        if (up->heartbeat->n_ranks)
            pid = up->heartbeat->ranks[0]->pid;
        weft__v1__up__free_unpacked(up, NULL);
    }
    return pid;
}

static int set_up(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    if (temp_folder_make(r.dir, "worker"))
        return -1;
    test_program(r.self);
    built_program("weft-worker", r.program);
    snprintf(r.address, sizeof r.address, "unix:%s/c.sock", r.dir);
    snprintf(r.state, sizeof r.state, "%s/state", r.dir);
    struct rpc_server_options o = {.address = r.address, .methods = &hosts_attach, .nmethods = 1};
    assert_int_equal(rpc_open(&r.rpc, NULL), 0);
    assert_int_equal(rpc_serve(r.rpc, &o, &r.server, NULL, 0, NULL), 0);
    start_worker(&r);
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    if (r->worker) {
        kill(r->worker, SIGKILL);
        waitpid(r->worker, NULL, 0);
    }
    rpc_close(r->rpc);
    return temp_folder_remove(r->dir);
}

// Waits until the file is there, or not.
static void await_file(const char *path, bool is)
{
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    while ((access(path, F_OK) == 0) != is) {
        assert_true(clock_mono_ns() < watchdog);
        clock_sleep_ms(1);
    }
}

static void gone(int pid)
{
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    while (lives(pid)) {
        assert_true(clock_mono_ns() < watchdog);
        clock_sleep_ms(5);
    }
}

// ---- cases ----

static void it_runs_ranks_and_reports_their_progress_and_end(void **state)
{
    struct rig *r = *state;
    welcome(r);
    start_ranks(r, "ready page 5 hold");
    hear_ready(r);
    Weft__V1__Up *up = hear(r, UP(PROGRESS));
    assert_int_equal(up->progress->ranks[0]->step, 5);
    weft__v1__up__free_unpacked(up, NULL);
    SAY(r, STOP, Stop, stop, stop, m->job = text("job1"), m->attempt = 1,
        m->reason = text("enough"), m->grace_ms = 30000);
    up = hear(r, UP(RANK_END));
    assert_int_equal(up->rank_end->code, 75);
    weft__v1__up__free_unpacked(up, NULL);
    pass(r, UP(REAPED));
    SAY(r, SYNC, Sync, sync, sync, m->job = text("job1"), m->attempt = 1);
    kill(r->worker, SIGTERM);
    pass(r, UP(LEAVING));
    assert_int_equal(wait_worker(r), 0);
}

static void terminated_it_drains_and_waits_to_be_heard(void **state)
{
    struct rig *r = *state;
    welcome(r);
    start_ranks(r, "ready hold");
    hear_ready(r);
    kill(r->worker, SIGTERM);
    pass(r, UP(LEAVING));
    pass(r, UP(REAPED));
    assert_int_equal(waitpid(r->worker, NULL, WNOHANG), 0);
    SAY(r, SYNC, Sync, sync, sync, m->job = text("job1"), m->attempt = 1);
    assert_int_equal(wait_worker(r), 0);
}

static void killed_it_takes_its_ranks_along_and_comes_back_as_the_same_host(void **state)
{
    struct rig *r = *state;
    char host[40], incarnation[40];
    welcome(r);
    strcpy(host, r->host);
    strcpy(incarnation, r->incarnation);
    start_ranks(r, "ready stay");
    hear_ready(r);
    int pid = rank_pid(r);
    kill(r->worker, SIGKILL);
    assert_int_equal(wait_worker(r), 128 + SIGKILL);
    gone(pid);
    start_worker(r);
    welcome(r);
    assert_string_equal(r->host, host);
    assert_string_not_equal(r->incarnation, incarnation);
}

static void ranks_outlive_a_lost_stream(void **state)
{
    struct rig *r = *state;
    welcome(r);
    start_ranks(r, "ready stay");
    hear_ready(r);
    int pid = rank_pid(r);
    char incarnation[40];
    strcpy(incarnation, r->incarnation);
    rpc_finish(r->rpc, r->call, RPC_UNAVAILABLE, "restarting");
    pass(r, UP(HELLO));
    SAY(r, CHALLENGE, Challenge, challenge, challenge, m->cluster = text("c1"),
        m->nonce = text("again"));
    Weft__V1__Up *up = hear(r, UP(REGISTER));
    assert_string_equal(up->register_->incarnation, incarnation);
    assert_int_equal(up->register_->n_attempts, 1);
    assert_int_equal(up->register_->attempts[0]->n_asked, 2); // both are Ready
    weft__v1__up__free_unpacked(up, NULL);
    assert_true(lives(pid));
}

static void its_heartbeats_say_how_much_room_its_folders_have(void **state)
{
    struct rig *r = *state;
    bool said = false;
    welcome(r);
    while (!said) { // the first may come before it has looked
        Weft__V1__Up *up = hear(r, UP(HEARTBEAT));
        const Weft__V1__Heartbeat *h = up->heartbeat;
        said = h->state_size > 0;
        assert_true(h->state_free >= 0 && h->state_free <= h->state_size);
        assert_int_equal(h->checkpoints_size, h->state_size); // in it, without --checkpoint-root
        weft__v1__up__free_unpacked(up, NULL);
    }
}

static void the_file_for_probes_is_there_while_it_is_attached(void **state)
{
    struct rig *r = *state;
    char file[200];
    snprintf(file, sizeof file, "%s/attached", r->state);
    pass(r, UP(HELLO));
    assert_int_equal(access(file, F_OK), -1);
    rpc_finish(r->rpc, r->call, RPC_UNAVAILABLE, "not yet");
    welcome(r);
    await_file(file, true);
    rpc_finish(r->rpc, r->call, RPC_UNAVAILABLE, "away");
    await_file(file, false);
    welcome(r);
    await_file(file, true);
    kill(r->worker,
         SIGKILL); // leaves it, and the next one takes it away before it asks to be let in
    assert_int_equal(wait_worker(r), 128 + SIGKILL);
    start_worker(r);
    pass(r, UP(HELLO));
    assert_int_equal(access(file, F_OK), -1);
}

static void fenced_it_kills_and_registers_as_somebody_new(void **state)
{
    struct rig *r = *state;
    char incarnation[40];
    welcome(r);
    strcpy(incarnation, r->incarnation);
    start_ranks(r, "ready stay");
    hear_ready(r);
    int pid = rank_pid(r);
    SAY(r, FENCED, FencedOut, fenced_out, fenced, m->why = text("lost its lease"));
    welcome(r);
    assert_string_not_equal(r->incarnation, incarnation);
    gone(pid);
}

static void a_twin_leaves_with_76(void **state)
{
    struct rig *r = *state;
    welcome(r);
    start_ranks(r, "ready stay");
    hear_ready(r);
    int pid = rank_pid(r);
    char pages[200]; // it names the attempt's folder, which would lie there for good
    snprintf(pages, sizeof pages, "%s/runs/job1.a1", r->state);
    assert_int_equal(access(pages, F_OK), 0);
    SAY(r, FENCED, FencedOut, fenced_out, fenced, m->twin = true, m->why = text("a twin"));
    assert_int_equal(wait_worker(r), 76);
    gone(pid);
    assert_int_equal(access(pages, F_OK), -1);
}

static void a_second_worker_on_its_folder_is_refused(void **state)
{
    struct rig *r = *state;
    welcome(r);
    int first = r->worker;
    start_worker(r);
    assert_int_equal(wait_worker(r), 78);
    r->worker = first;
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(int argc, char **argv)
{
    int code = double_main(argc, argv);
    if (code >= 0)
        return code;
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        CASE(it_runs_ranks_and_reports_their_progress_and_end),
        CASE(terminated_it_drains_and_waits_to_be_heard),
        CASE(killed_it_takes_its_ranks_along_and_comes_back_as_the_same_host),
        CASE(ranks_outlive_a_lost_stream),
        CASE(its_heartbeats_say_how_much_room_its_folders_have),
        CASE(the_file_for_probes_is_there_while_it_is_attached),
        CASE(fenced_it_kills_and_registers_as_somebody_new),
        CASE(a_twin_leaves_with_76),
        CASE(a_second_worker_on_its_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
