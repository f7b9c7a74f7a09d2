// SPDX-License-Identifier: Apache-2.0
// Copies through the packed form; see message.h.
#include "common/attempt/message.h"

#include <stdlib.h>

#include "common/base/err.h"

// The copy's memory is of `to`; null: the heap's.
static void *copy_into(ProtobufCAllocator *to, const ProtobufCMessage *m)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    PRE(bytes != NULL);
    protobuf_c_message_pack(m, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, to, len, bytes);
    PRE(copy != NULL);
    free(bytes);
    return copy;
}

void *message_copy(const ProtobufCMessage *m)
{
    return copy_into(NULL, m);
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
    ProtobufCAllocator to = {.alloc = get_from_arena, .free = leave_to_arena, .allocator_data = a};
    return copy_into(&to, m);
}
