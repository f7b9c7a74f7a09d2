// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1.Health, answered on the rpc thread. Anyone may ask. The empty service name and
// every service of the server's table get the server's one answer; others are unknown.
#include <string.h>

#include "common/rpc/server.h"
#include "proto/health.pb-c.h"

enum { EVERYONE = RPC_NONE | RPC_CLIENT | RPC_WORKER | RPC_ADMIN, REQUEST_MAX = 4096 };

static const struct rpc_method check = {"/grpc.health.v1.Health/Check",
                                        RPC_UNARY,
                                        &grpc__health__v1__health_check_request__descriptor,
                                        &grpc__health__v1__health_check_response__descriptor,
                                        EVERYONE,
                                        REQUEST_MAX,
                                        0};
static const struct rpc_method watch = {"/grpc.health.v1.Health/Watch",
                                        RPC_SERVER_STREAM,
                                        &grpc__health__v1__health_check_request__descriptor,
                                        &grpc__health__v1__health_check_response__descriptor,
                                        EVERYONE,
                                        REQUEST_MAX,
                                        0};

const struct rpc_method *health_method(grpc_slice path)
{
    if (!grpc_slice_str_cmp(path, check.path))
        return &check;
    return grpc_slice_str_cmp(path, watch.path) ? NULL : &watch;
}

bool health_is(const struct rpc_method *m)
{
    return m == &check || m == &watch;
}

// "weft.v1.Weft" of "/weft.v1.Weft/Submit".
static bool is_known_service(const struct rpc_server *s, const char *service)
{
    size_t len = strlen(service);
    if (!len)
        return true;
    for (int i = 0; i < s->nmethods; i++)
        if (!strncmp(s->methods[i].path + 1, service, len) && s->methods[i].path[1 + len] == '/')
            return true;
    return false;
}

static void send_answer(struct call *c)
{
    const struct rpc_server *s = c->home;
    Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    m.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    if (!c->known)
        m.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    else if (s->serving)
        m.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    call_send(c, &m.base);
}

void health_emit(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m)
{
    if (kind != RPC_CALL)
        return;
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)m;
    c->known = is_known_service(c->home, request->service);
    c->watching = c->method == &watch;
    if (c->watching || c->known)
        send_answer(c);
    if (!c->watching)
        call_finish(c, c->known ? RPC_OK : RPC_NOT_FOUND, c->known ? "" : "no such service");
    protobuf_c_message_free_unpacked(m, NULL);
}

void health_changed(struct rpc_server *s)
{
    list_for_each (it, &s->calls) {
        struct call *c = list_entry(it, struct call, link);
        if (!c->watching || !c->known)
            continue;
        send_answer(c);
        call_tick(c);
    }
}
