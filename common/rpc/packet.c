// SPDX-License-Identifier: Apache-2.0
// Messages. See packet.h.
#include "common/rpc/packet.h"

#include <grpc/byte_buffer_reader.h>
#include <stdlib.h>

#include "common/base/heap.h"

struct packet *packet_new(const ProtobufCMessage *m)
{
    struct packet *p = heap_alloc(sizeof *p);
    p->size = protobuf_c_message_get_packed_size(m);
    grpc_slice s = grpc_slice_malloc(p->size);
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(s));
    p->bytes = grpc_raw_byte_buffer_create(&s, 1); // has a reference of its own
    grpc_slice_unref(s);
    return p;
}

void packet_free(struct packet *p)
{
    while (p) {
        struct packet *next = p->next;
        grpc_byte_buffer_destroy(p->bytes);
        free(p);
        p = next;
    }
}

ProtobufCMessage *packet_unpack(const ProtobufCMessageDescriptor *d, grpc_byte_buffer *bytes)
{
    const grpc_slice_buffer *pieces = &bytes->data.raw.slice_buffer;
    if (bytes->data.raw.compression != GRPC_COMPRESS_NONE)
        return NULL;
    if (pieces->count == 1)
        return protobuf_c_message_unpack(d, NULL, GRPC_SLICE_LENGTH(pieces->slices[0]),
                                         GRPC_SLICE_START_PTR(pieces->slices[0]));
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, bytes))
        return NULL;
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    ProtobufCMessage *m =
        protobuf_c_message_unpack(d, NULL, GRPC_SLICE_LENGTH(all), GRPC_SLICE_START_PTR(all));
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    return m;
}
