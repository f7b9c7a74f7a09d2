// SPDX-License-Identifier: Apache-2.0
// common/rpc over mutual TLS: who a peer is, what its role may call, whom nobody lets in, and
// certificates that change while the server runs.
#include <sys/stat.h>

#include "common/rpc/tls_ca.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/rpc_pair.h"

struct room {
    struct pair p;
    char dir[TEMP_FOLDER_MAX], files[12][100];
    int nfiles;
};

static const char *file_of(struct room *t, const char *dir, const char *name)
{
    char *to = t->files[t->nfiles++ % 12];
    snprintf(to, sizeof t->files[0], "%s/%s", dir, name);
    return to;
}

static void ca_make(const char *dir)
{
    static const char *const sans[] = {"127.0.0.1"};
    struct err e = {0};
    must(tls_ca_init(dir, sans, 1, &e), &e);
}

static void issue(struct room *t, const char *role)
{
    struct err e = {0};
    must(tls_ca_issue(t->dir, &(struct tls_issue){role, role, 1, 0}, t->dir, &e), &e);
}

static void present(struct room *t, const char *dir, const char *name)
{
    char file[64];
    t->p.dial.tls.ca = file_of(t, t->dir, "ca.pem");
    t->p.dial.tls.cert = t->p.dial.tls.key = NULL;
    if (!name)
        return;
    snprintf(file, sizeof file, "%s.pem", name);
    t->p.dial.tls.cert = file_of(t, dir, file);
    snprintf(file, sizeof file, "%s.key", name);
    t->p.dial.tls.key = file_of(t, dir, file);
}

static void room_open(struct room *t)
{
    *t = (struct room){0};
    assert_int_equal(temp_folder_make(t->dir, "rpc-tls"), 0);
    ca_make(t->dir);
    issue(t, "worker");
    issue(t, "client");
    t->p.serve.address = "127.0.0.1:0";
    t->p.serve.tls =
        (struct rpc_tls){file_of(t, t->dir, "ca.pem"), file_of(t, t->dir, "server.pem"),
                         file_of(t, t->dir, "server.key")};
    pair_serve(&t->p);
    t->p.serve.tls = (struct rpc_tls){0};
}

static void room_close(struct room *t)
{
    rpc_close(t->p.server_rpc);
    assert_int_equal(temp_folder_remove(t->dir), 0);
}

// What the server says to a call of this method by whoever is presented; RPC_OK: it came in.
static enum rpc_code try_method(struct room *t, int method)
{
    struct pair *p = &t->p;
    struct rpc_event ev;
    enum rpc_code code = RPC_OK;
    pair_dial(p);
    bool bidi = methods[method].shape == RPC_BIDI;
    union { // room for any request
        ProtobufCMessage base;
        char room[512];
    } m;
    protobuf_c_message_init(methods[method].request, &m.base);
    rpc_call(p->channel, &methods[method], bidi ? NULL : &m.base, PATIENCE, false, NULL);
    for (bool known = false; !known; rpc_wait(p->server_rpc, CLOCK_MS)) {
        while (rpc_next(p->server_rpc, &ev)) {
            known |= ev.kind == RPC_CALL;
            rpc_event_clear(&ev);
        }
        while (rpc_next(p->client_rpc, &ev)) {
            if (ev.kind == RPC_CLOSED) {
                code = ev.code;
                known = true;
            }
            rpc_event_clear(&ev);
        }
    }
    rpc_close(p->client_rpc);
    p->client_rpc = NULL;
    return code;
}

// The worker's call as the server sees it, with what its certificate says of the peer.
static struct rpc_event hear_worker(struct room *t)
{
    struct rpc_event ev;
    present(t, t->dir, "worker");
    pair_dial(&t->p);
    call_attach(&t->p, false);
    do
        ev = next_event(t->p.server_rpc);
    while (ev.kind != RPC_CALL);
    return ev;
}

static void each_role_calls_what_its_rows_allow_and_nothing_else(void **state)
{
    static const struct {
        const char *name;
        enum rpc_role role;
    } who[] = {
        {NULL, RPC_NONE}, {"client", RPC_CLIENT}, {"worker", RPC_WORKER}, {"admin", RPC_ADMIN}};
    struct room t;
    (void)state;
    room_open(&t);
    for (size_t i = 0; i < 4; i++) {
        present(&t, t.dir, who[i].name);
        for (int m = 0; m < NMETHODS; m++) {
            bool may = methods[m].roles & who[i].role;
            assert_int_equal(try_method(&t, m), may ? RPC_OK : RPC_PERMISSION_DENIED);
        }
    }
    room_close(&t);
}

static void a_peer_is_named_by_its_certificate(void **state)
{
    struct room t;
    (void)state;
    room_open(&t);
    struct rpc_event ev = hear_worker(&t);
    assert_int_equal(ev.peer->role, RPC_WORKER);
    assert_string_equal(ev.peer->name, "worker");
    assert_int_equal(strlen(ev.peer->print), 64);
    assert_int_equal(ev.peer->hosts, 1);
    rpc_event_clear(&ev);
    rpc_close(t.p.client_rpc);
    room_close(&t);
}

static void a_fleets_certificate_says_for_how_many_hosts_it_is(void **state)
{
    struct room t;
    struct err e = {0};
    (void)state;
    room_open(&t);
    must(tls_ca_issue(t.dir, &(struct tls_issue){"worker", "fleet", 1, 40}, t.dir, &e), &e);
    assert_int_equal(tls_ca_issue(t.dir, &(struct tls_issue){"client", "x", 1, 40}, t.dir, &e),
                     ERR_INVALID);
    struct rpc_event ev = hear_worker(&t);
    assert_string_equal(ev.peer->name, "fleet");
    assert_int_equal(ev.peer->hosts, 40);
    rpc_event_clear(&ev);
    rpc_close(t.p.client_rpc);
    room_close(&t);
}

static void a_certificate_of_another_authority_gets_nowhere(void **state)
{
    struct room t;
    char other[TEMP_FOLDER_MAX];
    (void)state;
    room_open(&t);
    assert_int_equal(temp_folder_make(other, "rpc-ca"), 0);
    ca_make(other);
    present(&t, other, "admin");
    assert_int_equal(try_method(&t, ACT), RPC_UNAVAILABLE);
    present(&t, t.dir, "admin"); // and the server is none the worse
    assert_int_equal(try_method(&t, ACT), RPC_OK);
    t.p.dial.tls.ca = file_of(&t, other, "ca.pem"); // a client trusts no server of another's
    assert_int_equal(try_method(&t, ACT), RPC_UNAVAILABLE);
    assert_int_equal(temp_folder_remove(other), 0);
    room_close(&t);
}

static void a_server_of_another_name_is_not_trusted(void **state)
{
    struct room t;
    (void)state;
    room_open(&t);
    present(&t, t.dir, "admin");
    t.p.dial.server_name = "elsewhere.example";
    assert_int_equal(try_method(&t, ACT), RPC_UNAVAILABLE);
    t.p.dial.server_name = "localhost";
    assert_int_equal(try_method(&t, ACT), RPC_OK);
    room_close(&t);
}

static void a_plain_client_gets_nowhere(void **state)
{
    struct room t;
    (void)state;
    room_open(&t);
    t.p.dial.tls = (struct rpc_tls){0};
    assert_int_equal(try_method(&t, ACT), RPC_UNAVAILABLE);
    room_close(&t);
}

// The server's certificate gets another name while it serves: soon new connections see it.
static void a_new_certificate_is_taken_without_a_restart(void **state)
{
    static const char *const sans[] = {"127.0.0.1", "renewed.example"};
    struct room t;
    struct err e = {0};
    (void)state;
    room_open(&t);
    present(&t, t.dir, "admin");
    t.p.dial.server_name = "renewed.example";
    assert_int_equal(try_method(&t, ACT), RPC_UNAVAILABLE);
    must(tls_ca_renew_server(t.dir, sans, 2, &e), &e);
    int64_t end = clock_mono_ns() + PATIENCE;
    while (try_method(&t, ACT) != RPC_OK && clock_mono_ns() < end)
        clock_sleep_ms(100);
    assert_int_equal(try_method(&t, ACT), RPC_OK);
    room_close(&t);
}

static void files_that_do_not_fit_are_refused_at_once(void **state)
{
    struct room t;
    struct rpc_channel *c;
    struct rpc *r;
    struct err e = {0};
    (void)state;
    room_open(&t);
    must(rpc_open(&r, &e), &e);
    t.p.dial.address = t.p.bound;
    present(&t, t.dir, "admin");
    t.p.dial.tls.key = file_of(&t, t.dir, "worker.key");
    assert_int_equal(rpc_dial(r, &t.p.dial, &c, &e), ERR_INVALID);
    t.p.dial.tls.key = NULL;
    assert_int_equal(rpc_dial(r, &t.p.dial, &c, &e), ERR_INVALID);
    present(&t, t.dir, "nobody");
    assert_int_equal(rpc_dial(r, &t.p.dial, &c, &e), ERR_IO);
    present(&t, t.dir, "admin");
    t.p.dial.tls.ca = t.p.dial.tls.key;
    assert_int_equal(rpc_dial(r, &t.p.dial, &c, &e), ERR_INVALID);
    rpc_close(r);
    room_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_role_calls_what_its_rows_allow_and_nothing_else),
        cmocka_unit_test(a_peer_is_named_by_its_certificate),
        cmocka_unit_test(a_fleets_certificate_says_for_how_many_hosts_it_is),
        cmocka_unit_test(a_certificate_of_another_authority_gets_nowhere),
        cmocka_unit_test(a_server_of_another_name_is_not_trusted),
        cmocka_unit_test(a_plain_client_gets_nowhere),
        cmocka_unit_test(a_new_certificate_is_taken_without_a_restart),
        cmocka_unit_test(files_that_do_not_fit_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
