// SPDX-License-Identifier: Apache-2.0
// Answers that are kept: a mutating call carries an id, and a repeat within 24 h gets the first
// answer. A call that was refused did nothing: its repeat is decided again. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/coord_state.h"

enum { REQUEST_DIGEST = 32 };
struct request { // one that was answered
    struct list link;
    char *id;
    unsigned char digest[REQUEST_DIGEST]; // of the call: the same id with another call is refused
    unsigned char *reply;                 // packed
    size_t reply_len;
    int64_t t_ms;
};
int request_load(struct coord *c, const struct row *row, struct err *e);
// True when the call is answered or refused here: it was made before, or its id is not usable.
bool request_known(struct coord *c, uint64_t call, const char *id, const ProtobufCMessage *request,
                   const ProtobufCMessageDescriptor *reply);
// Keeps and sends the answer.
void request_answer(struct coord *c, uint64_t call, const char *id, const ProtobufCMessage *request,
                    const ProtobufCMessage *reply);
void requests_trim(struct coord *c);
void requests_free(struct coord *c);
