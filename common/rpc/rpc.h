// SPDX-License-Identifier: Apache-2.0
// gRPC, kept in one room: no other directory sees a grpc header. README.md in this folder says how
// the room works.
//
// A struct rpc is one thread that sits in one completion queue, with every server, channel and call
// on it. The owner (a daemon's main thread, or the client) is one other thread: it polls rpc_fd(),
// takes events with rpc_next() and answers with the calls below, which never block: they hand work
// to the rpc thread. All functions are the owner's unless said otherwise.
//
//   rpc_open → rpc_serve / rpc_dial → (rpc_next … rpc_send, rpc_finish, rpc_call …) → rpc_close
//
// A call is named by a number that is never used again, so that a late answer to a call that has
// ended does nothing. Each call ends with exactly one RPC_CLOSED event, its last. What waits to be
// written is bounded per call: rpc_send says ERR_LIMIT when full, RPC_ROOM comes when half empty. A
// server reads the next message of a stream only after rpc_more (or the first, with RPC_CALL), so a
// slow owner slows its peers and never grows.
//
// Transport security is decided here and cannot be forgotten: without TLS only Unix sockets and
// loopback addresses are served or dialled (ERR_INVALID else); with it, a peer without a
// certificate has role none. A method's row says which roles may call it; all else gets
// PERMISSION_DENIED before its message is read.
//
// grpc.health.v1.Health (Check and Watch) is part of every server: rpc_serving() sets its answer.
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum rpc_role { // bits of rpc_method.roles
    RPC_NONE = 1,
    RPC_CLIENT = 2,
    RPC_WORKER = 4,
    RPC_ADMIN = 8,
    RPC_LOCAL = 16, // no TLS: a Unix socket or loopback. May call everything
};
const char *rpc_role_name(enum rpc_role r); // "none", "client", "worker", "admin", "local"

enum rpc_code { // gRPC's numbers
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_ABORTED = 10,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_UNAUTHENTICATED = 16,
};

enum rpc_shape { RPC_UNARY, RPC_SERVER_STREAM, RPC_BIDI };

struct rpc_method {
    const char *path; // "/weft.v1.Weft/Submit"
    enum rpc_shape shape;
    const ProtobufCMessageDescriptor *request, *reply;
    unsigned roles;     // who may call it besides RPC_LOCAL
    size_t max_request; // bytes of one message; 0: RPC_MESSAGE_MAX
    size_t max_queue;   // bytes waiting in one call; 0: RPC_QUEUE_MAX
};

enum {
    RPC_MESSAGE_MAX = 16 << 20, // bytes, both ways
    RPC_QUEUE_MAX = 64 << 20,   // bytes waiting in one call
    RPC_QUEUE_MESSAGES = 4096,  // messages waiting in one call
    RPC_NAME_MAX = 128,
    RPC_TEXT_MAX = 1024, // of a status: what is longer is cut
};

struct rpc_tls {                 // null pointers: no TLS. All files are read again when they change
    const char *ca, *cert, *key; // PEM files
};

struct rpc;
struct rpc_server;
struct rpc_channel;

int rpc_open(struct rpc **out, struct err *e); // its threads have every signal blocked
// Closes servers (one second of grace for open calls), channels and calls; joins. Null is fine.
void rpc_close(struct rpc *r);
int rpc_fd(const struct rpc *r); // poll for reading

struct rpc_server_options {
    const char *address; // "unix:/path" or "HOST:PORT"; port 0: any
    struct rpc_tls tls;
    const struct rpc_method *methods; // borrowed for the server's life
    int nmethods;
    int max_connections, max_calls; // open at once; 0: 4096 and 16384
    int calls_per_s;    // that one caller (certificate's name, else host) may begin; 0: 1000. Four
                        // seconds' worth may come at once
    int64_t request_ns; // a request not whole by then makes room when others come; 0: 10 s
    int64_t keepalive_ns; // 0: 5 s. A peer that does not answer a ping for as long is gone
};
// bound (may be null): the address to give to others, with the port; "unix:/path" for a socket,
// made with mode 0600. The caller holds a lock of its own against two servers on one path.
int rpc_serve(struct rpc *r, const struct rpc_server_options *o, struct rpc_server **out,
              char *bound, size_t size, struct err *e);
void rpc_serving(struct rpc_server *s, bool yes); // what grpc.health.v1 says; false at first

struct rpc_channel_options {
    const char *address;
    struct rpc_tls tls;
    const char *server_name; // expected in the server's certificate; null: the address's host
    int64_t max_backoff_ns;  // between connection attempts, jittered; 0: 2 s
    int64_t keepalive_ns;    // 0: 5 s
};
int rpc_dial(struct rpc *r, const struct rpc_channel_options *o, struct rpc_channel **out,
             struct err *e);             // connects with the first call
void rpc_hang_up(struct rpc_channel *c); // its calls end with CANCELLED

// Opens a call. `request` is sent at once (unary, server stream: and no more); null for RPC_BIDI.
// wait_ready: waits for a connection up to the deadline instead of failing at once.
// deadline_ns: from now; 0: none. `user` comes back in every event of the call.
uint64_t rpc_call(struct rpc_channel *c, const struct rpc_method *m,
                  const ProtobufCMessage *request, int64_t deadline_ns, bool wait_ready,
                  void *user);

// For both ends of a call. Packs the message at once, so that it stays the caller's. Returns 0 for
// an unknown call too.
int rpc_send(struct rpc *r, uint64_t call, const ProtobufCMessage *m, struct err *e);
// Whether the call's queue is more than a sixteenth full, so that what can be left out should be.
// False for an unknown call.
bool rpc_lags(struct rpc *r, uint64_t call);
// Read the stream's next message. The first is read unasked, at both ends.
void rpc_more(struct rpc *r, uint64_t call);
// A server sends the status behind what waits; a client says that it sends no more.
void rpc_finish(struct rpc *r, uint64_t call, enum rpc_code code, const char *text);
// A unary call's answer: rpc_send and rpc_finish with RPC_OK.
void rpc_reply(struct rpc *r, uint64_t call, const ProtobufCMessage *m);
void rpc_cancel(struct rpc *r, uint64_t call);               // throws away what waits
void rpc_set_user(struct rpc *r, uint64_t call, void *user); // server: for later events

enum rpc_event_kind {
    RPC_CALL,    // server: a new call, allowed. Unary, server stream: with its message
    RPC_MESSAGE, // stream, either end; client unary: the reply
    RPC_END,     // server, bidi: the client sends no more: it half-closed, or RPC_CLOSED will say
                 // that it is gone. Client's streams: always, just before RPC_CLOSED
    RPC_ROOM,    // the call's queue, full before, is half empty
    RPC_CLOSED,  // the last of a call: code and text
};
struct rpc_peer {
    enum rpc_role role;
    char name[RPC_NAME_MAX];    // common name of the certificate; "" if none
    char print[65];             // SHA-256 of a worker's key; "" if none
    int hosts;                  // for how many hosts a worker's certificate is; 0: no certificate
    char address[RPC_NAME_MAX]; // as gRPC prints it
};
struct rpc_event {
    enum rpc_event_kind kind;
    uint64_t call;
    void *user;
    const struct rpc_method *method;
    const struct rpc_peer *peer; // RPC_CALL only; until rpc_event_clear
    ProtobufCMessage *message;   // RPC_CALL, RPC_MESSAGE; cast by method. Freed by rpc_event_clear
    enum rpc_code code;          // RPC_CLOSED
    char text[RPC_TEXT_MAX];     // RPC_CLOSED
    void *held;                  // private
};
// False when there is none now. Each event taken is given to rpc_event_clear.
bool rpc_next(struct rpc *r, struct rpc_event *ev);
void rpc_event_clear(struct rpc_event *ev);
// Takes the message out of an event: free it with protobuf_c_message_free_unpacked(m, NULL).
ProtobufCMessage *rpc_event_take(struct rpc_event *ev);
// Waits until there is an event or the time is over (negative: for ever); false then, and when a
// signal came. For a client without a loop of its own.
bool rpc_wait(struct rpc *r, int64_t timeout_ns);

// One unary call from start to end, on a struct rpc that has no other traffic (the client's short
// verbs, join). *reply is freed by the caller. ERR_PEER: not reached; ERR_REFUSED: code and text
// are in e.
int rpc_ask(struct rpc *r, struct rpc_channel *c, const struct rpc_method *m,
            const ProtobufCMessage *request, int64_t timeout_ns, ProtobufCMessage **reply,
            enum rpc_code *code, struct err *e);
// From now on rpc_ask gives its call up, which then ends with CANCELLED, when fd is readable: a
// signalfd, say. −1: it never does.
void rpc_cancel_on(struct rpc *r, int fd);
