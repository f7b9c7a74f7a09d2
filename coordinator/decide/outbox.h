// SPDX-License-Identifier: Apache-2.0
// How rows and actions leave a step. Whatever leaves is copied into the arena of the step's
// coord_out: later steps of a batch may change or free what a message was made from before it is
// sent. Inside coordinator/ only.
#pragma once
#include "common/attempt/frame.h"
#include "coordinator/decide/coord_state.h"

enum { // gRPC's numbers
    CODE_INVALID = 3,
    CODE_NOT_FOUND = 5,
    CODE_DENIED = 7,
    CODE_EXHAUSTED = 8,
    CODE_PRECONDITION = 9,
    CODE_ABORTED = 10,
};

// A row is to be written as the struct is now, or to be erased. What is returned is valid until the
// next.
struct row *out_row(struct coord *c, enum row_kind kind, const void *record);
void out_erase(struct coord *c, enum row_kind kind, const void *record);
void out_down(struct coord *c, uint64_t conn, const Weft__V1__Down *down); // conn 0: nobody
void out_drop(struct coord *c, uint64_t conn, int code, const char *text);
void out_reply(struct coord *c, uint64_t call, const ProtobufCMessage *reply);
void out_refuse(struct coord *c, uint64_t call, int code, const char *text);
void out_post(struct coord *c, const char *receiver, const char *id, const char *body);
void out_publish(struct coord *c, const char *job, const Weft__V1__WatchUpdate *update);

// A Down with one body: DOWN(d, START, start, &start).
#define DOWN(name, CASE, member, ptr)             \
    Weft__V1__Down name = WEFT__V1__DOWN__INIT;   \
    name.body_case = WEFT__V1__DOWN__BODY_##CASE; \
    name.member = (ptr)
