// SPDX-License-Identifier: Apache-2.0
// weft-worker join against a coordinator played here over TLS: a token is traded once for a
// certificate that the worker then attaches with.
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "common/rpc/tls_ca.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/agent_double.h"
#include "tests/unit/unit.h"
#include "worker/worker_daemon.h"

#define CASE_HELLO WEFT__V1__UP__BODY_HELLO
enum { WATCHDOG_S = 60 };

struct rig {
    char dir[64], ca[100], state[100], bound[100], program[PATH_MAX], self[PATH_MAX];
    char file[3][120];
    struct rpc_method methods[2];
    struct rpc *rpc;
    int worker;
    struct rpc_peer peer; // of the last call
    bool greeted;
};

static int set_up(void **state)
{
    static struct rig r;
    static const char *const names[] = {"ca.pem", "server.pem", "server.key"};
    struct rpc_server *server;
    memset(&r, 0, sizeof r);
    if (temp_folder_make(r.dir, "join"))
        return -1;
    snprintf(r.ca, sizeof r.ca, "%s/ca", r.dir);
    snprintf(r.state, sizeof r.state, "%s/state", r.dir);
    for (int i = 0; i < 3; i++)
        snprintf(r.file[i], sizeof r.file[i], "%s/%s", r.ca, names[i]);
    test_program(r.self);
    built_program("weft-worker", r.program);
    assert_int_equal(tls_ca_init(r.ca, (const char *const[]){"127.0.0.1"}, 1, NULL), 0);
    r.methods[0] = hosts_attach;
    r.methods[1] = hosts_join;
    struct rpc_server_options o = {.address = "127.0.0.1:0",
                                   .tls = {r.file[0], r.file[1], r.file[2]},
                                   .methods = r.methods,
                                   .nmethods = 2};
    struct err e = {0};
    assert_int_equal(rpc_open(&r.rpc, NULL), 0);
    if (rpc_serve(r.rpc, &o, &server, r.bound, sizeof r.bound, &e))
        fail_msg("%s", e.text);
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

static void answer_join(struct rig *r, const struct rpc_event *ev)
{
    const Weft__V1__JoinRequest *m = (const Weft__V1__JoinRequest *)(const void *)ev->message;
    const char *cert, *ca;
    struct arena a;
    struct err e = {0};
    Weft__V1__JoinReply reply;
    arena_init(&a);
    weft__v1__join_reply__init(&reply);
    const struct tls_request q = {m->secret, m->csr_pem, m->role};
    if (tls_token_sign(r->ca, &q, clock_wall_ms() / 1000, &a, &cert, &ca, &e)) {
        rpc_finish(r->rpc, ev->call, RPC_PERMISSION_DENIED, e.text);
    } else {
        reply.cert_pem = frame_text(cert);
        reply.ca_pem = frame_text(ca);
        rpc_reply(r->rpc, ev->call, &reply.base);
    }
    arena_clear(&a);
}

static void serve(struct rig *r)
{
    struct rpc_event ev;
    (void)rpc_wait(r->rpc, 20 * CLOCK_MS);
    while (rpc_next(r->rpc, &ev)) {
        if (ev.kind == RPC_CALL)
            r->peer = *ev.peer;
        if (ev.kind == RPC_CALL && ev.message)
            answer_join(r, &ev);
        if (ev.kind == RPC_MESSAGE)
            r->greeted = ((Weft__V1__Up *)(void *)ev.message)->body_case == CASE_HELLO;
        rpc_event_clear(&ev);
    }
}

static void launch(struct rig *r, const char *const *args)
{
    const char *argv[16] = {r->program};
    int n = 1;
    for (; args[n - 1]; n++)
        argv[n] = args[n - 1];
    r->worker = fork();
    if (r->worker == 0) {
        execv(r->program, (char *const *)(const void *)argv);
        _exit(127);
    }
}

static int join(struct rig *r, const char *token)
{
    const char *const args[] = {"join",     token,     "--coordinator", r->bound, "--name",
                                "worker-a", "--state", r->state,        NULL};
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    int status;
    launch(r, args);
    while (waitpid(r->worker, &status, WNOHANG) == 0) {
        assert_true(clock_mono_ns() < watchdog);
        serve(r);
    }
    r->worker = 0;
    return WEXITSTATUS(status);
}

static void make_token(const char *ca, const char *role, char token[TLS_TOKEN_MAX])
{
    const struct tls_token what = {role, "worker-a", 0, 600};
    assert_int_equal(tls_token_make(ca, &what, clock_wall_ms() / 1000, token, NULL), 0);
}

static void a_token_is_traded_once_and_the_certificate_attaches(void **state)
{
    struct rig *r = *state;
    char token[TLS_TOKEN_MAX];
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    make_token(r->ca, "worker", token);
    assert_int_equal(join(r, token), 0);
    assert_int_equal(r->peer.role, RPC_NONE);
    assert_int_equal(join(r, token), 78); // it is used up
    const char *const args[] = {"--coordinator", r->bound,        "--state", r->state, "--rank",
                                r->self,         "--cpu-devices", "2",       NULL};
    launch(r, args);
    while (!r->greeted) {
        assert_true(clock_mono_ns() < watchdog);
        serve(r);
    }
    assert_int_equal(r->peer.role, RPC_WORKER);
    assert_string_equal(r->peer.name, "worker-a");
}

static void a_clients_token_makes_no_worker_and_stays_good(void **state)
{
    struct rig *r = *state;
    char token[TLS_TOKEN_MAX], file[200];
    struct tls_token_text text;
    struct arena a;
    struct err e = {0};
    const char *key, *csr, *cert, *ca_pem;
    make_token(r->ca, "client", token);
    assert_int_equal(join(r, token), 78);
    snprintf(file, sizeof file, "%s/tls/worker.pem", r->state);
    assert_int_equal(access(file, F_OK), -1);
    arena_init(&a); // whoever is a client can still use it
    assert_int_equal(tls_token_parse(token, &text, &e), 0);
    assert_int_equal(tls_key_keep(r->dir, "client", &a, &key, &e), 0);
    assert_int_equal(tls_request_make("worker-a", key, &a, &csr, &e), 0);
    const struct tls_request q = {text.secret, csr, "client"};
    assert_int_equal(tls_token_sign(r->ca, &q, clock_wall_ms() / 1000, &a, &cert, &ca_pem, &e), 0);
    arena_clear(&a);
}

static void a_token_of_another_authority_is_not_trusted(void **state)
{
    struct rig *r = *state;
    char token[TLS_TOKEN_MAX], other[100];
    snprintf(other, sizeof other, "%s/other", r->dir);
    assert_int_equal(tls_ca_init(other, NULL, 0, NULL), 0);
    make_token(other, "worker", token);
    assert_int_equal(join(r, token), 78);
    assert_int_equal(r->peer.role, 0); // nothing was asked of it
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(int argc, char **argv)
{
    int code = double_main(argc, argv);
    if (code >= 0)
        return code;
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        CASE(a_token_is_traded_once_and_the_certificate_attaches),
        CASE(a_clients_token_makes_no_worker_and_stays_good),
        CASE(a_token_of_another_authority_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
