// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
//
//   bytes   every byte is a token, 0 to 255
//   ids     no vocabulary: text is the ids themselves, "15496 995"
//   PATH    a tokenizer.json; a folder with one, or with vocab.json and merges.txt (GPT-2's form)
//
// A tokenizer does not change once it is open: any number of threads use one, each with a work of its
// own. The ids and the texts of a file are those of PyPI's `tokenizers`; what a file says that this
// room does not know is refused by its name and place (the README has the list).
//
//   tokenizer_open → tokenizer_work_new, a thread → tokenizer_encode … → _work_free → tokenizer_close
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

enum {
    TOKENIZER_MAX_FILE = 128 << 20, // bytes: of each file
    TOKENIZER_MAX_VOCAB = 1 << 22,  // tokens, and so the greatest id
    TOKENIZER_MAX_MERGES = 1 << 22,
    TOKENIZER_MAX_ADDED = 1 << 16,       // added tokens
    TOKENIZER_MAX_ADDED_BYTES = 1 << 10, // of one's content
    TOKENIZER_MAX_LITERAL = 1 << 10, // bytes: of a text that is looked for, put in or put around
    TOKENIZER_MAX_AROUND = 1 << 10,  // ids that the post-processor puts around a text
    TOKENIZER_MAX_TEXT = 1 << 29,    // bytes: of one text to encode, normalized or not
    TOKENIZER_MAX_GROWTH = 1 << 20,  // bytes: by which a decoder's Replace makes a token longer
    TOKENIZER_IDENTITY_LEN = 80,
};

// A run of ids that grows. A zeroed one is empty and safe to clear.
struct token_ids {
    int32_t *data;
    size_t n, cap;
};
void token_ids_clear(struct token_ids *ids);
void token_ids_put(struct token_ids *ids, int32_t id);
void token_ids_append(struct token_ids *ids, const int32_t *from, size_t n);

// ---- a tokenizer -------------------------------------------------------------------------------
struct tokenizer;
// `name` is bytes, ids or a path ("./bytes" is a path). ERR_NOTFOUND, ERR_IO: the file cannot be read;
// ERR_DATA, ERR_LIMIT, ERR_UNSUPPORTED: what is wrong in it, with its place.
int tokenizer_open(struct tokenizer **t, const char *name, struct err *e);
bool tokenizer_is_file(const char *name); // neither bytes nor ids
// The same with its files beneath a root (base/root.h; null: there is none).
int tokenizer_open_beneath(struct tokenizer **t, const char *root, const char *name, struct err *e);
// Only its identity, from the bytes of its files, which may hold anything.
int tokenizer_identify(const char *root, const char *name, char identity[TOKENIZER_IDENTITY_LEN],
                       struct err *e);
// The same tokenizer from the bytes of a tokenizer.json, or of vocab.json and merges.txt (null: there
// is none).
int tokenizer_parse(struct tokenizer **t, const char *json, size_t bytes, const char *merges,
                    size_t merges_bytes, struct err *e);
void tokenizer_close(struct tokenizer *t); // null is fine

// One more than the greatest id; 0: not known (ids).
int64_t tokenizer_vocab(const struct tokenizer *t);
// "bytes", "ids", or "sha256:" and the digest of the bytes that decide the ids.
const char *tokenizer_identity(const struct tokenizer *t);
// The id of a token by its content, as the file writes it; −1: there is none.
int32_t tokenizer_id(const struct tokenizer *t, const char *content);
// Finds the id that ends a document: `content` names its token; null stands for the one of the usual
// (<|endoftext|>, </s>, …) that is a special token of the file. *id is −1 where there is none (bytes
// and ids never have one). ERR_INVALID: several are, or no token is called that.
int tokenizer_find_end(const struct tokenizer *t, const char *content, int32_t *id, struct err *e);
// Whether ids of `of` mean the same here: each token of its vocabulary has its id here too. Added tokens
// may differ: who extends a tokenizer adds some, or gives reserved ones other names. Where not, *differs
// is the first id that does not; −1: one of them has no vocabulary to compare.
bool tokenizer_extends(const struct tokenizer *t, const struct tokenizer *of, int32_t *differs);
// Writes what it was opened from into a folder that is there, each file whole or not at all:
// tokenizer.json, or vocab.json and merges.txt. tokenizer_open(dir) then gives the same tokenizer.
// Writes nothing for bytes and ids. `dir` starts at dirfd.
int tokenizer_save(const struct tokenizer *t, int dirfd, const char *dir, struct err *e);

// ---- text to ids -------------------------------------------------------------------------------
struct tokenizer_work; // what a thread needs meanwhile: room, and the pieces that it met before
struct tokenizer_work *tokenizer_work_new(const struct tokenizer *t); // borrows t
void tokenizer_work_free(struct tokenizer_work *w);                   // null is fine

// Appends the ids of the text. `special`: with what the file's post-processor puts around a text (a
// token of its beginning, mostly). Bytes that are not UTF-8 are read as U+FFFD, one for each maximal
// part (Python's errors="replace"); kind bytes takes every byte as it is.
// ERR_INVALID: it is no text of this kind; ERR_LIMIT: too long, or a pattern gave up.
int tokenizer_encode(const struct tokenizer *t, struct tokenizer_work *w, const char *text,
                     size_t bytes, bool special, struct token_ids *out, struct err *e);

// ---- ids to text -------------------------------------------------------------------------------
// Appends the text of these ids. A file's is always UTF-8: what is none becomes U+FFFD, as in
// `tokenizers`; ids that it does not have are left out. Kind bytes gives the bytes themselves, and
// <300> for an id that is none. `skip_special`: without the special tokens.
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *text);

// The same with ids that come one by one: what _put and _end append is, joined, what tokenizer_decode
// gives. What the next ids may still change is held back: a character whose bytes are not all there.
struct tokenizer_stream;
struct tokenizer_stream *tokenizer_stream_new(const struct tokenizer *t, bool skip_special);
void tokenizer_stream_put(struct tokenizer_stream *s, int32_t id, struct buf *text);
void tokenizer_stream_end(struct tokenizer_stream *s, struct buf *text); // and begins a new text
void tokenizer_stream_free(struct tokenizer_stream *s);
