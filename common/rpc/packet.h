// SPDX-License-Identifier: Apache-2.0
// Messages as the core carries them. Inside common/rpc/ only. They are packed once by whoever
// sends, unpacked where they lie when they came in one piece. Compressed messages are malformed
// here: nobody asked for them, and a small one may hide a large one.
#pragma once
#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct packet {
    struct packet *next;
    grpc_byte_buffer *bytes;
    size_t size;
};

struct packet *packet_new(const ProtobufCMessage *m);
void packet_free(struct packet *p); // and what follows it; null is fine
// Null when malformed.
ProtobufCMessage *packet_unpack(const ProtobufCMessageDescriptor *d, grpc_byte_buffer *bytes);
