// SPDX-License-Identifier: Apache-2.0
// Fuzzing the frame decoder: whatever bytes come down a socket, in whatever pieces, give frames or
// an error. The first input byte chooses the size of the pieces.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/attempt/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int take_all(struct frame_conn *c)
{
    struct err e = {0};
    Weft__Rank__Frame *f;
    int rc;
    while (!(rc = frame_next(c, &f, &e)) && f) {
        // What decodes packs again to something that decodes.
        size_t n = weft__rank__frame__get_packed_size(f);
        uint8_t *bytes = malloc(n + 1);
        weft__rank__frame__pack(f, bytes);
        Weft__Rank__Frame *again = weft__rank__frame__unpack(NULL, n, bytes);
        if (!again || again->body_case != f->body_case)
            abort();
        weft__rank__frame__free_unpacked(again, NULL);
        weft__rank__frame__free_unpacked(f, NULL);
        free(bytes);
    }
    if (rc && !e.text[0])
        abort();
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int sv[2];
    if (size < 2 || size > 32768 || socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
        return 0;
    struct frame_conn in, out;
    frame_conn_init(&in, sv[0]);
    frame_conn_init(&out, sv[1]);
    size_t piece = (size_t)data[0] + 1, rc = 0;
    for (size_t at = 1; at < size && !rc; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        if (send(sv[1], data + at, n, MSG_NOSIGNAL) != (ssize_t)n)
            break;
        rc = (size_t)(frame_fill(&in, NULL) || take_all(&in));
    }
    frame_conn_clear(&in);
    frame_conn_clear(&out);
    return 0;
}
