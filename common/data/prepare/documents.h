// SPDX-License-Identifier: Apache-2.0
// Reads the sources one behind the other and cuts them into batches of documents, which many threads
// work on at once: lines of JSON as they stand, or one text. Where a batch begins depends on the
// inputs alone. A batch knows the place behind it, from which another reader continues.
//
//   batch of lines   whole lines of one file, about a MiB; blank lines are no documents
//   batch of text    one whole text; with `cut`, pieces of a MiB or less, whole lines where a line ends
//                    in them, the last of which `ends` it
//
// Inside common/data/prepare/ only.
#pragma once
#include <stdatomic.h>

#include "common/base/buf.h"
#include "common/data/prepare/input.h"
#include "common/data/prepare/sources.h"

enum {
    BATCH_BYTES = 1 << 20,     // of lines or of a cut text, about
    LINE_MOST = 64 << 20,      // bytes of a line
    DOCUMENT_MOST = 512 << 20, // bytes of a text that is not cut
};

struct place {
    int source;             // its number
    uint64_t byte;          // of its text, unpacked
    uint64_t lines;         // of this source before it
    uint64_t documents;     // of all sources before it
    struct hash128 streams; // of the texts of all streams before it
};

struct batch {
    const struct source *source;
    const char *name; // of the source, for messages
    struct buf text;
    struct place from, to;
    bool begins, ends;     // of text: it has the document's first byte, its last
    struct hash128 stream; // of a stream: of its text as far as `to`
    uint64_t taken;        // bytes of all sources' files read so far
};

struct documents {
    const struct sources *sources; // borrowed
    const char *field;             // for messages
    bool cut;                      // texts may be cut into pieces
    struct place at;
    struct input input;
    struct buf rest; // read, and behind the last batch's end
    uint64_t before; // bytes of the files before this one
    struct xxh3 *stream;
    bool ended;              // this source
    const atomic_bool *stop; // of whoever waits for a stream; may be null
    bool seeks;              // to `from`, before anything else
    struct place from;
    struct hash128 digest;
};

// One document of a batch, or a piece of it. Where none is left, `text` is null.
struct document {
    const char *text;
    size_t len;
    uint64_t number; // over all sources
    uint64_t bytes;  // of the document as far as this piece
    bool ends;
    size_t next; // private to batch_document
    uint64_t at, line, begun;
};

// Begins at the first source or, with `from`, at a place that another reader came to, where a stream's
// text is to have had this digest: else documents_next fails with ERR_DATA.
void documents_init(struct documents *d, const struct sources *s, const char *field, bool cut,
                    const struct place *from, struct hash128 stream);
// The next batch, whose buffer is used again; batch->source is null behind the last.
int documents_next(struct documents *d, struct batch *b, struct err *e);
void documents_clear(struct documents *d);

// Gives a batch's documents one by one; begins with a zeroed `doc`. The text of a line lies in the arena,
// which is cleared each time. ERR_DATA names file, line and byte.
int batch_document(const struct batch *b, const char *field, struct arena *a, struct document *doc,
                   struct err *e);
// Adds to an error its document's place: the file and, where it is a line, that and its byte.
void document_locate(const struct batch *b, const struct document *doc, struct err *e);
