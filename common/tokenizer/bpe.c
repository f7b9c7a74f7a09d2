// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding. See bpe.h.
//
// A short piece merges by looking through its pairs each time, a long one by a heap, so that time grows
// with n log n. Without a pre-tokenizer (Llama 2) the piece is a whole text. It is then cut between two
// characters that stand side by side in no merge's result: no merge ever reaches over such a place, so
// both sides become the same tokens as together, and most of them are words that were met before.
#include "common/tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/heap.h"
#include "common/tokenizer/byte_level.h"

enum { SHORT_PIECE = 48 }; // symbols
#define NO_RANK     UINT32_MAX
#define LOWER_BLOCK 0x2581u // ▁

// ---- merging -----------------------------------------------------------------------------------
// Takes the symbols from `from` on as a short piece. Returns how many are left.
static size_t merge_short(const struct bpe *b, int32_t *ids, size_t n)
{
    uint32_t ranks[SHORT_PIECE];
    int32_t into[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge *m = find_merge(&b->vocabulary, ids[i], ids[i + 1]);
        ranks[i] = m ? m->rank : NO_RANK;
        into[i] = m ? m->into : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = ranks[i] < ranks[best] ? i : best;
        if (ranks[best] == NO_RANK)
            break;
        ids[best] = into[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best - 1) * sizeof *ranks);
        memmove(into + best, into + best + 1, (n - best - 1) * sizeof *into);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *m = find_merge(&b->vocabulary, ids[i], ids[i + 1]);
            ranks[i] = m ? m->rank : NO_RANK;
            into[i] = m ? m->into : 0;
        }
    }
    return n;
}

static void push_heap(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static uint64_t pop_heap(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        child += child + 1 < *n && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

// Ranks the pair that begins at a symbol, and queues it.
static void queue_pair(const struct bpe *b, struct bpe_work *w, int32_t *ids, int32_t at,
                       size_t *queued)
{
    struct bpe_links *l = &w->links[at];
    const struct merge *m =
        l->after < 0 ? NULL : find_merge(&b->vocabulary, ids[at], ids[l->after]);
    l->rank = m ? m->rank : NO_RANK;
    if (m)
        push_heap(w->heap, queued, (uint64_t)m->rank << 32 | (uint32_t)at);
}

// Of each merge at most two pairs are queued: 3n entries in all.
static int make_room(struct bpe_work *w, size_t n, struct err *e)
{
    if (n <= w->links_room)
        return 0;
    free(w->links);
    free(w->heap);
    w->links = malloc(n * sizeof *w->links);
    w->heap = malloc(3 * n * sizeof *w->heap);
    w->links_room = w->links && w->heap ? n : 0;
    return w->links_room ? 0
                         : err_set(e, ERR_NOMEM, "no memory for a piece of %zu symbols: %zu MB", n,
                                   n * (sizeof *w->links + 3 * sizeof *w->heap) >> 20);
}

static int merge_long(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n,
                      struct err *e)
{
    size_t queued = 0, left = 0;
    int rc = make_room(w, *n, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < *n; i++)
        w->links[i] = (struct bpe_links){(int32_t)i - 1, i + 1 < *n ? (int32_t)i + 1 : -1, NO_RANK};
    for (size_t i = 0; i < *n; i++)
        queue_pair(b, w, ids, (int32_t)i, &queued);
    while (queued) {
        uint64_t top = pop_heap(w->heap, &queued);
        int32_t at = (int32_t)(uint32_t)top;
        struct bpe_links *l = &w->links[at];
        if (l->rank != top >> 32)
            continue; // the pair is another by now
        int32_t gone = l->after;
        ids[at] = find_merge(&b->vocabulary, ids[at], ids[gone])->into;
        ids[gone] = -1;
        w->links[gone].rank = NO_RANK;
        l->after = w->links[gone].after;
        if (l->after >= 0)
            w->links[l->after].before = at;
        queue_pair(b, w, ids, at, &queued);
        if (l->before >= 0)
            queue_pair(b, w, ids, l->before, &queued);
    }
    for (size_t i = 0; i < *n; i++)
        if (ids[i] >= 0)
            ids[left++] = ids[i];
    *n = left;
    return 0;
}

// ---- a piece -----------------------------------------------------------------------------------
// Appends a character's token, or what stands for it where it has none; *unknown: an unknown one is
// still to be written. (It is written before the next character that is a token, which is behind the
// bytes of one that falls back to them: so `tokenizers` does it.)
static void put_character(const struct bpe *b, int32_t id, const int32_t *fallback, size_t n,
                          bool *unknown, struct token_ids *out)
{
    if (id >= 0) {
        if (*unknown)
            token_ids_put(out, b->unknown);
        *unknown = false;
        token_ids_put(out, id);
    } else if (n) {
        for (size_t i = 0; i < n; i++)
            token_ids_put(out, fallback[i]);
    } else if (b->unknown >= 0) {
        if (*unknown && !b->fuse_unknown)
            token_ids_put(out, b->unknown);
        *unknown = true;
    }
}

// The tokens of a character's bytes: all of them, or 0.
static size_t find_fallback(const struct bpe *b, const char *s, size_t bytes, int32_t ids[4])
{
    for (size_t i = 0; i < bytes; i++) {
        ids[i] = b->byte_fallback ? b->fallback[(unsigned char)s[i]] : -1;
        if (ids[i] < 0)
            return 0;
    }
    return bytes;
}

static void put_symbols(const struct bpe *b, const char *s, size_t n, struct token_ids *out)
{
    bool unknown = false;
    int32_t fallback[4];
    for (size_t i = 0, bytes; i < n; i += bytes) {
        if (b->byte_level) {
            const struct bpe_start *start = &b->starts[(unsigned char)s[i]];
            bytes = 1;
            put_character(b, start->known ? start->ids[0] : -1, start->ids, (size_t)start->n,
                          &unknown, out);
            continue;
        }
        int32_t id = (int32_t)b->characters[char_at(s + i, &bytes)] - 1;
        put_character(b, id, fallback, id < 0 ? find_fallback(b, s + i, bytes, fallback) : 0,
                      &unknown, out);
    }
    if (unknown)
        token_ids_put(out, b->unknown);
}

// The whole piece as one token; −1: it is none.
static int32_t find_whole(const struct bpe *b, struct bpe_work *w, const char *s, size_t n)
{
    if (!b->ignore_merges || n > b->vocabulary.longest)
        return -1;
    if (!b->byte_level)
        return vocabulary_find(&b->vocabulary, s, n);
    buf_reset(&w->spelled);
    buf_reserve(&w->spelled, BYTE_LEVEL_LONGEST * n);
    for (size_t i = 0; i < n; i++)
        w->spelled.len +=
            (size_t)byte_level_put((unsigned char)s[i], w->spelled.data + w->spelled.len);
    return vocabulary_find(&b->vocabulary, w->spelled.data, w->spelled.len);
}

static int merge_piece(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                       struct err *e)
{
    struct token_ids *symbols = &w->symbols;
    int rc = 0;
    symbols->n = 0;
    put_symbols(b, s, n, symbols);
    if (symbols->n <= SHORT_PIECE)
        symbols->n = merge_short(b, symbols->data, symbols->n);
    else
        rc = merge_long(b, w, symbols->data, &symbols->n, e);
    return rc;
}

// Appends the tokens of a piece, or of a part of one that no merge leaves.
static int put_piece(const struct bpe *b, struct bpe_work *w, const char *s, size_t n, bool whole,
                     struct token_ids *out, struct err *e)
{
    uint64_t hash = 0;
    size_t count;
    if (n <= PIECE_CACHED) {
        hash = hash_bytes(s, n, b->vocabulary.seed) | 1;
        const int32_t *ids = piece_cache_get(&w->cache, hash, s, n, &count);
        if (ids) {
            token_ids_append(out, ids, count);
            return 0;
        }
    }
    int32_t id = whole ? find_whole(b, w, s, n) : -1;
    if (id >= 0) {
        w->symbols.n = 0;
        token_ids_put(&w->symbols, id);
    } else {
        int rc = merge_piece(b, w, s, n, e);
        if (rc)
            return rc;
    }
    if (hash)
        piece_cache_put(&w->cache, hash, s, n, w->symbols.data, w->symbols.n);
    token_ids_append(out, w->symbols.data, w->symbols.n);
    return 0;
}

// ---- cutting a text where no merge reaches over ------------------------------------------------
static unsigned find_close(uint32_t c)
{
    return c < BPE_CLOSE - 1 ? c : c == LOWER_BLOCK ? BPE_CLOSE - 1 : BPE_CLOSE;
}

static size_t find_pair_slot(const struct bpe *b, uint64_t pair)
{
    size_t i = hash_mix(pair ^ b->vocabulary.seed) & b->pair_mask;
    while (b->pairs[i] && b->pairs[i] != pair)
        i = (i + 1) & b->pair_mask;
    return i;
}

static bool is_joined(const struct bpe *b, uint32_t left, uint32_t right)
{
    unsigned x = find_close(left), y = find_close(right);
    if (x < BPE_CLOSE && y < BPE_CLOSE)
        return b->close[x][y];
    uint64_t pair = (uint64_t)left << 32 | right;
    return b->pairs[find_pair_slot(b, pair)] == pair;
}

static int put_text(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                    struct token_ids *out, struct err *e)
{
    enum { NONE = CHAR_END };
    uint32_t last = NONE; // the character before that is a token
    size_t from = 0;      // of the part that is not written yet
    bool unknown = false;
    int rc = 0;
    for (size_t i = 0, bytes; i < n && !rc; i += bytes) {
        uint32_t c = char_at(s + i, &bytes);
        int32_t fallback[4], id = (int32_t)b->characters[c] - 1;
        size_t nfallback = id < 0 ? find_fallback(b, s + i, bytes, fallback) : 0;
        if (id < 0 && !nfallback && b->unknown < 0)
            continue; // it vanishes, and its neighbours may merge
        if (last != NONE && (id < 0 || !is_joined(b, last, c))) {
            rc = put_piece(b, w, s + from, i - from, false, out, e);
            last = NONE;
        }
        if (id < 0) {
            put_character(b, id, fallback, nfallback, &unknown, out);
            continue;
        }
        if (last == NONE) {
            from = i;
            if (unknown)
                token_ids_put(out, b->unknown);
            unknown = false;
        }
        last = c;
    }
    if (last != NONE && !rc)
        rc = put_piece(b, w, s + from, n - from, false, out, e);
    if (unknown)
        token_ids_put(out, b->unknown);
    return rc;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
               struct token_ids *out, struct err *e)
{
    if (!b->cuts)
        return put_piece(b, w, s, n, true, out, e);
    int32_t id = find_whole(b, w, s, n);
    if (id < 0)
        return put_text(b, w, s, n, out, e);
    token_ids_put(out, id);
    return 0;
}

// ---- what is worked out once -------------------------------------------------------------------
static void find_fallback_tokens(struct bpe *b)
{
    for (unsigned byte = 0; byte < BPE_BYTES; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        b->fallback[byte] = vocabulary_find(&b->vocabulary, name, strlen(name));
    }
}

static void find_starts(struct bpe *b)
{
    for (unsigned byte = 0; byte < BPE_BYTES; byte++) {
        char character[BYTE_LEVEL_LONGEST];
        struct bpe_start *start = &b->starts[byte];
        size_t n = (size_t)byte_level_put(byte, character);
        int32_t id = vocabulary_find(&b->vocabulary, character, n), fallback[4];
        *start = (struct bpe_start){.ids = {id}, .known = id >= 0};
        if (start->known)
            continue;
        start->n = (int)find_fallback(b, character, n, fallback);
        memcpy(start->ids, fallback, (size_t)start->n * sizeof *fallback);
    }
}

static void find_characters(struct bpe *b)
{
    b->characters = heap_alloc(CHAR_END * sizeof *b->characters);
    for (size_t id = 0; id < b->vocabulary.n; id++) {
        const struct vocabulary_token *t = &b->vocabulary.tokens[id];
        size_t n;
        if (!t->content || !t->bytes)
            continue;
        uint32_t c = char_at(t->content, &n);
        if (n == t->bytes)
            b->characters[c] = (uint32_t)id + 1;
    }
}

// Whether a token takes part in merges though it may stand for something else than its content: then
// the characters at a merge's ends say nothing.
static bool is_special_part(const struct bpe *b, int32_t id)
{
    const struct vocabulary_token *t = &b->vocabulary.tokens[id];
    return id == b->unknown || (b->byte_fallback && t->bytes == 6 && t->content[0] == '<');
}

static void find_cuts(struct bpe *b)
{
    size_t slots = b->vocabulary.merge_mask + 1;
    b->pairs = heap_alloc(slots * sizeof *b->pairs);
    b->pair_mask = slots - 1;
    b->cuts = true;
    for (size_t i = 0; i < slots && b->cuts; i++) {
        const struct merge *m = &b->vocabulary.merges[i];
        if (m->pair == MERGE_NONE)
            continue;
        int32_t ids[2] = {(int32_t)(m->pair >> 32), (int32_t)(uint32_t)m->pair};
        const struct vocabulary_token *left = &b->vocabulary.tokens[ids[0]],
                                      *right = &b->vocabulary.tokens[ids[1]];
        b->cuts = !is_special_part(b, ids[0]) && !is_special_part(b, ids[1]);
        size_t n;
        uint32_t x = char_at(char_before(left->content + left->bytes), &n);
        uint32_t y = char_at(right->content, &n);
        unsigned close_x = find_close(x), close_y = find_close(y);
        uint64_t pair = (uint64_t)x << 32 | y;
        if (close_x < BPE_CLOSE && close_y < BPE_CLOSE)
            b->close[close_x][close_y] = 1;
        else
            b->pairs[find_pair_slot(b, pair)] = pair;
    }
}

void bpe_prepare(struct bpe *b)
{
    find_fallback_tokens(b);
    if (b->byte_level) {
        find_starts(b);
        return;
    }
    find_characters(b);
    find_cuts(b);
}

void bpe_clear(struct bpe *b)
{
    vocabulary_clear(&b->vocabulary);
    free(b->characters);
    free(b->pairs);
    *b = (struct bpe){0};
}

void bpe_work_init(struct bpe_work *w)
{
    *w = (struct bpe_work){0};
    piece_cache_init(&w->cache);
}

void bpe_work_clear(struct bpe_work *w)
{
    piece_cache_clear(&w->cache);
    token_ids_clear(&w->symbols);
    free(w->links);
    free(w->heap);
    buf_clear(&w->spelled);
}
