// SPDX-License-Identifier: Apache-2.0
// A file of text that is read from its start, whatever it is packed in: nothing, gzip (of any
// number of members, one behind the other) or zstd (of any number of frames). The first bytes say
// which; a name in .gz or .zst whose file is not that is refused. "-" is standard input. A member
// or frame that is cut off or damaged is an error that names the byte. Inside
// common/data/prepare/ only.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>
#include <zstd.h>

#include "common/base/err.h"

enum { INPUT_BUFFER = 256 << 10 };

struct input {
    const char *name; // for messages: the path (borrowed), or "standard input"
    int fd;
    enum { INPUT_PLAIN, INPUT_GZIP, INPUT_ZSTD } packing;
    uint64_t taken; // bytes of the file so far, with those in the buffer
    z_stream gzip;
    ZSTD_DStream *zstd;
    bool within;           // a member or frame
    bool ended;            // the file; the buffer may hold more
    unsigned char *buffer; // owned; null: closed
    size_t at, end;        // of what was read and is not unpacked yet
    const atomic_bool *stop;
};

// ERR_NOTFOUND, ERR_IO; ERR_UNSUPPORTED: Parquet and other files that hold no text as they are; the
// message says how to bring it in; ERR_DATA: it is not packed as its name says. `field` is for a
// message. Once *stop (may be null) is true, a read fails with ERR_ABORTED. After a failure there is
// nothing to close.
int input_open(struct input *in, const char *path, const char *field, const atomic_bool *stop,
               struct err *e);
// At most INPUT_BUFFER bytes. *got = 0: the text has ended. ERR_DATA: damaged or cut off.
int input_read(struct input *in, void *to, size_t *got, struct err *e);
int input_seek(struct input *in, uint64_t byte, struct err *e); // of a regular file, not packed
uint64_t input_place(const struct input *in); // how many bytes of the file were unpacked
void input_close(struct input *in);           // a zeroed or closed one is fine
