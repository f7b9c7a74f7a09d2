// SPDX-License-Identifier: Apache-2.0
// Copies through the packed form; see message.h.
#include "common/attempt/message.h"

#include <stdlib.h>

#include "common/base/err.h"

void *message_copy(const ProtobufCMessage *m)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    PRE(bytes != NULL);
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, len, bytes);
    PRE(copy != NULL);
    free(bytes);
    return copy;
}

static void *get_from_arena(void *a, size_t n)
{
    return arena_alloc(a, n);
}

static void leave_to_arena(void *a, void *p)
{
    (void)a;
    (void)p;
}

void *message_dup(struct arena *a, const ProtobufCMessage *m)
{
    ProtobufCAllocator from = {
        .alloc = get_from_arena, .free = leave_to_arena, .allocator_data = a};
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = arena_alloc(a, len + 1);
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, &from, len, bytes);
    PRE(copy != NULL);
    return copy;
}
