// SPDX-License-Identifier: Apache-2.0
// Joining a cluster. See join_cluster.h. Nothing is stored before the certificate has been checked
// against the authority that the token names.
#include "worker/join_cluster.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/rpc/rpc.h"
#include "common/rpc/tls_ca.h"
#include "worker/worker_daemon.h"

#define JOIN_NS (30 * CLOCK_S)

struct joining {
    const char *coordinator;
    struct tls_token_text token;
    char ca_file[4200];
    const char *key, *csr;
};

static int ask_for_certificate(const struct joining *j, Weft__V1__JoinReply **reply, struct err *e)
{
    struct rpc *r = NULL;
    struct rpc_channel *channel;
    struct rpc_channel_options o = {.address = j->coordinator, .tls = {.ca = j->ca_file}};
    V1_NEW(JoinRequest, join_request, m);
    ProtobufCMessage *got = NULL;
    enum rpc_code code;
    m.secret = frame_text(j->token.secret);
    m.csr_pem = frame_text(j->csr);
    m.role = frame_text("worker");
    int rc = rpc_open(&r, e);
    rc = rc ? rc : rpc_dial(r, &o, &channel, e);
    // The coordinator takes one at a time: of hosts that join at once each waits for its turn.
    unsigned char pause = 0;
    for (int64_t until = clock_mono_ns() + JOIN_NS; !rc; clock_sleep_ms(100 + pause)) {
        (void)entropy_bytes(&pause, sizeof pause, NULL);
        rc = rpc_ask(r, channel, &hosts_join, &m.base, JOIN_NS, &got, &code, e);
        if (rc != ERR_REFUSED || code != RPC_RESOURCE_EXHAUSTED || clock_mono_ns() > until)
            break;
        rc = 0;
    }
    rpc_close(r);
    *reply = (Weft__V1__JoinReply *)(void *)got;
    return rc;
}

static int check_name(const struct tls_token_text *token, const char *name, struct err *e)
{
    return !name || !token->name[0] || !strcmp(name, token->name)
               ? 0
               : err_set(e, ERR_INVALID, "the token is for '%s' and --name says '%s'", token->name,
                         name);
}

static const char *choose_name(const struct tls_token_text *token, const char *name,
                               const char *host_name)
{
    return token->name[0] ? token->name : name ? name : host_name;
}

int join_cluster(const char *token, const char *coordinator, const char *dir, int look_s,
                 const char *name, const char *host_name, struct err *e)
{
    struct joining j = {.coordinator = coordinator};
    Weft__V1__JoinReply *reply = NULL;
    struct arena a = {0};
    snprintf(j.ca_file, sizeof j.ca_file, "%s/.joining-ca.pem", dir);
    int rc = tls_token_parse(token, &j.token, e);
    rc = rc ? rc : check_name(&j.token, name, e);
    rc = rc ? rc : folder_make(dir, e);
    rc = rc ? rc : tls_fetch_ca(coordinator, j.token.ca_sha256, j.ca_file, look_s, e);
    rc = rc ? rc : tls_key_keep(dir, "worker", &a, &j.key, e);
    rc = rc ? rc : tls_request_make(choose_name(&j.token, name, host_name), j.key, &a, &j.csr, e);
    rc = rc ? rc : ask_for_certificate(&j, &reply, e);
    rc = rc ? rc
            : tls_request_store(dir, "worker", j.token.ca_sha256, reply->ca_pem, reply->cert_pem,
                                j.key, e);
    (void)unlink(j.ca_file);
    weft__v1__join_reply__free_unpacked(reply, NULL);
    arena_clear(&a);
    return rc;
}
