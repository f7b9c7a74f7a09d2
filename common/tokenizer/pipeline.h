// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json says, in the order in which a text meets it. Inside common/tokenizer/ only.
//
//   text ─► added tokens ─► normalizers ─► added tokens ─► pre-tokenizers ─► BPE ─► post-processor ─► ids
//           as it stands      ┊                in normal form     └ pieces
//                             └ each gap between tokens by itself
//
//   ids ─► contents ─► decoders, one after the other ─► text
#pragma once
#include "common/base/arena.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/class_pattern.h"
#include "common/tokenizer/known_patterns.h"
#include "common/tokenizer/regex_pattern.h"

enum { PIPELINE_STEPS = 16 }; // normalizers, pre-tokenizers, decoders: of each at most so many

struct literal { // a text with its length
    const char *s;
    size_t n;
};

struct normalizer {
    enum normalizer_kind { NORMALIZE_NFC, NORMALIZE_REPLACE, NORMALIZE_PREPEND } kind;
    struct literal pattern, content; // prepend: only content
};

enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};
struct pre_tokenizer {
    enum pre_tokenizer_kind {
        PRE_SPLIT,
        PRE_DIGITS,
        PRE_METASPACE,
        PRE_BYTE_LEVEL, // the last one, if there is one
    } kind;
    // What is looked for: the first of these that is there. Digits: none of them.
    find_match known;
    struct class_pattern class; // with ranges
    struct regex_pattern *regex;
    struct literal string;
    enum split_behavior behavior;
    bool invert;       // what is found and what stands between change places
    bool prefix_space; // byte-level: a piece begins with a space
    enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend; // metaspace
    bool split; // metaspace: pieces begin with the replacement
};

struct decoder {
    enum decoder_kind {
        DECODE_BYTE_LEVEL,
        DECODE_REPLACE,
        DECODE_BYTE_FALLBACK,
        DECODE_FUSE,
        DECODE_STRIP,
    } kind;
    struct literal pattern, content; // replace; strip: content is one character
    int start;                       // strip: at most so many
};

struct pipeline {
    struct arena arena; // what the literals and contents are in
    struct added_token *added;
    size_t nadded;
    struct added_tree raw, normal; // those looked for in the text, in the normalized text
    int32_t *added_by_id;          // index into `added`, or −1; below nids
    size_t nids;                   // one more than the greatest id
    size_t ntokens;                // of the vocabulary
    struct buf joined;             // while merges are read
    struct normalizer normalizers[PIPELINE_STEPS];
    int nnormalizers;
    struct pre_tokenizer pre_tokenizers[PIPELINE_STEPS];
    int npre_tokenizers;
    struct bpe bpe;
    struct token_ids before, behind; // the post-processor's
    bool has_template;
    struct decoder decoders[PIPELINE_STEPS];
    int ndecoders;
};

// ---- normalizing: normalize.c ----
// The text after all normalizers: itself, or in one of the two buffers, which take turns. ERR_LIMIT: it
// becomes longer than TOKENIZER_MAX_TEXT.
int normalize(const struct pipeline *p, const char *s, size_t n, struct buf turns[2],
              struct literal *normal, struct err *e);
// Appends the text with each `pattern` in it replaced; stops where `out` is past `most` bytes.
void replace_all(struct literal pattern, struct literal content, const char *s, size_t n,
                 size_t most, struct buf *out);

// ---- text to ids: encode.c ----
// The text with U+FFFD for each part that is not UTF-8; itself, if there is none.
struct literal make_valid(const char *text, size_t bytes, struct buf *valid);
struct encode_work {
    struct bpe_work bpe;
    struct regex_room *regex; // null until one is needed
    struct buf valid, turns[2], pieces[PIPELINE_STEPS];
};
void encode_work_init(struct encode_work *w);
void encode_work_clear(struct encode_work *w);
int pipeline_encode(const struct pipeline *p, struct encode_work *w, const char *text, size_t bytes,
                    bool special, struct token_ids *out, struct err *e);

// ---- ids to text: decode.c ----
struct decode_state {
    struct decode_step {
        struct buf token; // what came of one so far
        struct buf run;   // byte fallback: bytes of the tokens before
        int stripped;     // strip: so many; −1: something else came
    } steps[PIPELINE_STEPS];
};
void decode_clear(struct decode_state *s); // a zeroed one begins
void decode_put(const struct pipeline *p, struct decode_state *s, int32_t id, bool skip_special,
                struct buf *text);
void decode_end(const struct pipeline *p, struct decode_state *s, struct buf *text);

// ---- reading: read_json.c ----
int pipeline_read(struct pipeline *p, const char *json, size_t bytes, struct err *e);
// vocab.json and merges.txt: with GPT-2's pattern, no normalizer, and <|endoftext|>, if it is there, as a
// special token.
int pipeline_read_pair(struct pipeline *p, const char *vocab, size_t vocab_bytes,
                       const char *merges, size_t merges_bytes, struct err *e);
void pipeline_clear(struct pipeline *p); // a zeroed one is safe to clear
