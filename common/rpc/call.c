// SPDX-License-Identifier: Apache-2.0
// One RPC. See call.h for the three sides.
#include "common/rpc/call.h"

#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"

static void on_read(struct loop_tag *t, bool ok);
static void on_written(struct loop_tag *t, bool ok);
static void on_fate(struct loop_tag *t, bool ok);

struct call *call_new(struct rpc *r, const struct rpc_method *m)
{
    struct call *c = heap_alloc(sizeof *c);
    c->r = r;
    c->method = m;
    c->emit = rpc_emit;
    c->more = true; // the first message is read without being asked for
    list_init(&c->asked_link);
    list_init(&c->link);
    list_init(&c->asking);
    c->read_tag.landed = on_read;
    c->write_tag.landed = on_written;
    c->fate_tag.landed = on_fate;
    c->details = grpc_empty_slice();
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailers);
    return c;
}

static void free_call(struct call *c)
{
    packet_free(c->first);
    packet_free(c->out);
    if (c->in)
        grpc_byte_buffer_destroy(c->in);
    if (c->core)
        grpc_call_unref(c->core);
    grpc_slice_unref(c->details);
    gpr_free((void *)(uintptr_t)c->debug);
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailers);
    free(c);
}

// ---- requests ----

static size_t get_queue_max(const struct call *c)
{
    return c->method->max_queue ? c->method->max_queue : RPC_QUEUE_MAX;
}

int call_put(struct call *c, struct packet *p, struct err *e)
{
    int rc = 0;
    if (c->finish || c->cancel) {
        packet_free(p); // a call that has ended takes nothing; that is no error
        return 0;
    }
    if (p->size > RPC_MESSAGE_MAX) {
        rc =
            err_set(e, ERR_INVALID, "a message of %zu bytes; at most %d", p->size, RPC_MESSAGE_MAX);
    } else if (c->waiting >= RPC_QUEUE_MESSAGES || c->bytes + p->size > get_queue_max(c)) {
        c->full = true;
        rc = err_set(e, ERR_LIMIT, "%d messages, %zu bytes wait to be sent", c->waiting, c->bytes);
    }
    if (rc) {
        packet_free(p);
        return rc;
    }
    *(c->first ? &c->last->next : &c->first) = p;
    c->last = p;
    c->waiting++;
    c->bytes += p->size;
    return 0;
}

static void drop_waiting(struct call *c)
{
    packet_free(c->first);
    c->first = c->last = NULL;
    c->waiting = 0;
    c->bytes = 0;
}

void call_end(struct call *c, enum rpc_code code, const char *text)
{
    if (c->finish)
        return;
    c->finish = true;
    c->code = code;
    snprintf(c->text, sizeof c->text, "%s", text ? text : "");
}

void call_send(struct call *c, const ProtobufCMessage *m)
{
    struct packet *p = packet_new(m);
    pthread_mutex_lock(&c->r->lock);
    if (call_put(c, p, NULL))
        c->cancel = true; // only the health service sends here; so slow a reader is given up
    pthread_mutex_unlock(&c->r->lock);
}

void call_finish(struct call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->r->lock);
    call_end(c, code, text);
    pthread_mutex_unlock(&c->r->lock);
}

void call_fail(struct call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->r->lock);
    drop_waiting(c);
    c->more = false;
    call_end(c, code, text);
    pthread_mutex_unlock(&c->r->lock);
    if (!c->server && c->core)
        grpc_call_cancel_with_status(c->core, (grpc_status_code)code, text, NULL);
}

// What a tick may start now. It is taken from the requests under one lock.
struct call_work {
    struct packet *packet;
    bool read, close, hint, cancel, room;
};

static struct call_work take_call_work(struct call *c)
{
    struct call_work o = {0};
    pthread_mutex_lock(&c->r->lock);
    o.cancel = c->cancel && !c->cancelled;
    if (c->cancel || c->write == SIDE_OVER || c->fate == SIDE_OVER)
        drop_waiting(c);
    if (c->read == SIDE_IDLE && c->more && c->fate != SIDE_OVER) {
        o.read = true;
        c->more = false;
    }
    if (c->write == SIDE_IDLE && c->fate != SIDE_OVER) {
        o.packet = c->first;
        if (o.packet) {
            c->first = o.packet->next;
            o.packet->next = NULL;
            c->waiting--;
            c->bytes -= o.packet->size;
        }
        o.close = c->finish && !c->first;
        o.hint = c->first != NULL;
    }
    if (c->full && c->waiting <= RPC_QUEUE_MESSAGES / 2 && c->bytes <= get_queue_max(c) / 2) {
        c->full = false;
        o.room = c->fate != SIDE_OVER;
    }
    pthread_mutex_unlock(&c->r->lock);
    return o;
}

// ---- batches ----

static void start_batch(struct call *c, const grpc_op *ops, size_t n, struct loop_tag *tag)
{
    grpc_call_error rc = grpc_call_start_batch(c->core, ops, n, tag, NULL);
    PRE(rc == GRPC_CALL_OK); // else it is our bug: two reads at once, a write after the close
    c->flying++;
}

void call_begin(struct call *c, grpc_call *core)
{
    grpc_op op = {.op = c->server ? GRPC_OP_RECV_CLOSE_ON_SERVER : GRPC_OP_RECV_STATUS_ON_CLIENT};
    c->core = core;
    if (c->server) {
        op.data.recv_close_on_server.cancelled = &c->lost;
    } else {
        op.data.recv_status_on_client.status = &c->status;
        op.data.recv_status_on_client.status_details = &c->details;
        op.data.recv_status_on_client.error_string = &c->debug;
        op.data.recv_status_on_client.trailing_metadata = &c->trailers;
    }
    c->fate = SIDE_BUSY;
    start_batch(c, &op, 1, &c->fate_tag);
}

static void start_read(struct call *c)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_MESSAGE}};
    size_t n = 1;
    ops[0].data.recv_message.recv_message = &c->in;
    if (!c->server && !c->got_headers) {
        ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
        ops[n++].data.recv_initial_metadata.recv_initial_metadata = &c->headers;
        c->got_headers = true;
    }
    c->read = SIDE_BUSY;
    start_batch(c, ops, n, &c->read_tag);
}

static grpc_op make_closing_op(struct call *c)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    if (c->server) {
        op.op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        c->details = grpc_slice_from_copied_string(c->text);
        op.data.send_status_from_server.status = (grpc_status_code)c->code;
        op.data.send_status_from_server.status_details = &c->details;
    }
    return op;
}

// Starts one batch with all that may leave now: headers, a message, the close. The core lands a
// write when flow control lets it pass, which is the back pressure.
static void start_write(struct call *c, const struct call_work *o)
{
    grpc_op ops[3] = {0};
    size_t n = 0;
    if (!c->sent_headers && (!c->server || o->packet || o->close)) {
        ops[n].op = GRPC_OP_SEND_INITIAL_METADATA;
        if (c->wait_ready)
            ops[n].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                           GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
        n++;
        c->sent_headers = true;
    }
    if (o->packet) {
        c->out = o->packet;
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        // More follows, so the core may join both into one system call. Not in a batch with
        // headers: the core then starts no write, the batch never lands, and all waits for the next
        // ping.
        ops[n].flags = o->hint && !n ? GRPC_WRITE_BUFFER_HINT : 0;
        ops[n++].data.send_message.send_message = c->out->bytes;
    }
    if (o->close) {
        ops[n++] = make_closing_op(c);
        c->sends_last = true;
    }
    if (!n)
        return;
    c->write = SIDE_BUSY;
    start_batch(c, ops, n, &c->write_tag);
}

// gRPC wraps the cause of a failed connection, which follows "last error: UNKNOWN: ".
static const char *find_cause(const char *text, size_t *len)
{
    static const char wrap[] = "last error: ";
    const char *last = memmem(text, *len, wrap, sizeof wrap - 1);
    size_t skip = last ? (size_t)(last - text) + sizeof wrap - 1 : 0;
    const char *colon = last ? memmem(text + skip, *len - skip, ": ", 2) : NULL;
    skip = colon ? (size_t)(colon - text) + 2 : 0;
    *len -= skip;
    return text + skip;
}

// Sets how the call ended. The server's own code stands if its status has left. `finish` makes
// further requests do nothing.
static void set_outcome(struct call *c)
{
    bool own = c->server && c->finish && !c->lost;
    const char *text = c->cancel ? "cancelled here" : "the client cancelled, was late or is gone";
    size_t len = strlen(text);
    c->finish = true;
    if (own)
        return;
    c->code = RPC_CANCELLED;
    if (!c->server) {
        c->code = (enum rpc_code)c->status;
        text = (const char *)GRPC_SLICE_START_PTR(c->details);
        len = GRPC_SLICE_LENGTH(c->details);
        text = c->code == RPC_UNAVAILABLE ? find_cause(text, &len) : text;
    }
    if (c->code == RPC_OK && c->method->shape == RPC_UNARY && !c->replied) {
        c->code = RPC_INTERNAL;
        text = "the server said OK without a reply";
        len = strlen(text);
    }
    snprintf(c->text, sizeof c->text, "%.*s", (int)len, text);
}

void call_tick(struct call *c)
{
    struct call_work o = take_call_work(c);
    if (o.cancel && c->fate == SIDE_BUSY) {
        c->cancelled = true;
        grpc_call_cancel_with_status(c->core, GRPC_STATUS_CANCELLED, "cancelled", NULL);
    }
    if (o.read)
        start_read(c);
    if (c->write == SIDE_IDLE && c->fate == SIDE_BUSY)
        start_write(c, &o);
    if (o.room)
        c->emit(c, RPC_ROOM, NULL);
    if (c->fate != SIDE_OVER || c->flying)
        return;
    pthread_mutex_lock(&c->r->lock);
    set_outcome(c);
    pthread_mutex_unlock(&c->r->lock);
    // A status may overtake the last read, so a client's stream always gets its RPC_END here.
    if (!c->server && c->method->shape != RPC_UNARY)
        c->emit(c, RPC_END, NULL);
    c->emit(c, RPC_CLOSED, NULL);
    list_remove(&c->link);
    c->gone(c);
    free_call(c);
}

// ---- landings ----

// The message in c->in; null: it is no good, and the call has been failed for that.
static ProtobufCMessage *unpack_message(struct call *c)
{
    const struct rpc_method *m = c->method;
    size_t max = c->server && m->max_request ? m->max_request : RPC_MESSAGE_MAX;
    if (grpc_byte_buffer_length(c->in) > max) {
        call_fail(c, RPC_RESOURCE_EXHAUSTED, "the message is too large");
        return NULL;
    }
    ProtobufCMessage *got = packet_unpack(c->server ? m->request : m->reply, c->in);
    if (!got)
        call_fail(c, c->server ? RPC_INVALID_ARGUMENT : RPC_INTERNAL, "malformed message");
    return got;
}

static void read_message(struct call *c)
{
    bool single = c->server ? c->method->shape != RPC_BIDI : c->method->shape == RPC_UNARY;
    ProtobufCMessage *m = unpack_message(c);
    grpc_byte_buffer_destroy(c->in);
    c->in = NULL;
    c->read = single || !m ? SIDE_OVER : SIDE_IDLE;
    if (!m)
        return;
    c->replied = true;
    c->emit(c, c->server && single ? RPC_CALL : RPC_MESSAGE, m);
}

static void read_nothing(struct call *c, bool ok)
{
    c->read = SIDE_OVER;
    if (c->server && c->method->shape != RPC_BIDI)
        call_fail(c, RPC_INVALID_ARGUMENT, "no message");
    else if (c->server && ok && c->fate != SIDE_OVER)
        c->emit(c, RPC_END, NULL);
}

static void on_read(struct loop_tag *t, bool ok)
{
    struct call *c = list_entry(t, struct call, read_tag);
    c->flying--;
    list_remove(&c->asking);
    if (ok && c->in)
        read_message(c);
    else
        read_nothing(c, ok);
    call_tick(c);
}

static void on_written(struct loop_tag *t, bool ok)
{
    struct call *c = list_entry(t, struct call, write_tag);
    c->flying--;
    packet_free(c->out);
    c->out = NULL;
    c->write = !ok || c->sends_last ? SIDE_OVER : SIDE_IDLE;
    call_tick(c);
}

static void on_fate(struct loop_tag *t, bool ok)
{
    struct call *c = list_entry(t, struct call, fate_tag);
    (void)ok; // this one always succeeds
    c->flying--;
    c->fate = SIDE_OVER;
    call_tick(c);
}
