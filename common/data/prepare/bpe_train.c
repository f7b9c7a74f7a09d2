// SPDX-License-Identifier: Apache-2.0
// Learning a BPE. See bpe_train.h.
//
// All pieces lie one behind the other in one row of symbols, each linked to its neighbours in the piece. A
// pair knows its count and the places where it stood when it was last seen there; a place is looked at
// again before it is merged, so that nothing is ever taken out of the lists. The heap holds counts that
// may have fallen since: what comes up with an old count goes back with the new one.
#include "common/data/prepare/bpe_train.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/heap.h"
#include "common/tokenizer/pieces.h"

enum { NONE = UINT32_MAX, ALPHABET = 256 };

struct symbol {
    uint32_t id, before, behind; // places of its neighbours; NONE. An id of NONE was merged away
    uint32_t piece;
};
struct pair {
    uint64_t key; // left and right id
    int64_t count;
    uint32_t *places; // of the left symbol
    uint32_t n, cap;
    bool touched; // its count rose in this merge
};
struct candidate {
    int64_t count;
    uint64_t key;
};

struct training {
    struct bpe_learned *l;
    struct arena arena; // of the arrays that grow
    struct symbol *row;
    uint32_t nrow;
    uint64_t *counts; // of a piece
    struct pair *pairs;
    int npairs, cap_pairs;
    uint32_t *index; // open addressing over pairs: number and one; 0 is free
    size_t cap_index;
    struct candidate *heap;
    int nheap, cap_heap;
    uint32_t *risen; // pairs that are touched
    int nrisen, cap_risen;
    struct piece_ids { // of a token's bytes
        uint32_t *index;
        size_t cap;
    } known;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

// ---- pairs -------------------------------------------------------------------------------------
static void grow_index(struct training *t)
{
    free(t->index);
    t->cap_index = t->cap_index ? 2 * t->cap_index : 1 << 14;
    t->index = heap_alloc(t->cap_index * sizeof *t->index);
    for (int p = 0; p < t->npairs; p++) {
        size_t i = mix(t->pairs[p].key);
        while (t->index[i & (t->cap_index - 1)])
            i++;
        t->index[i & (t->cap_index - 1)] = (uint32_t)p + 1;
    }
}

static uint32_t find_pair(struct training *t, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    if (2 * (size_t)t->npairs >= t->cap_index)
        grow_index(t);
    for (size_t i = mix(key);; i++) {
        uint32_t *slot = &t->index[i & (t->cap_index - 1)];
        if (*slot && t->pairs[*slot - 1].key == key)
            return *slot - 1;
        if (*slot)
            continue;
        t->pairs = arena_grow(&t->arena, t->pairs, sizeof *t->pairs, t->npairs, &t->cap_pairs);
        t->pairs[t->npairs] = (struct pair){.key = key};
        *slot = (uint32_t)++t->npairs;
        return *slot - 1;
    }
}

static void add_place(struct training *t, uint32_t left, uint32_t right, uint32_t place)
{
    uint32_t found = find_pair(t, left, right);
    struct pair *p = &t->pairs[found];
    p->count += (int64_t)t->counts[t->row[place].piece];
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 4;
        p->places = realloc(p->places, p->cap * sizeof *p->places);
        PRE(p->places);
    }
    p->places[p->n++] = place;
    if (p->touched)
        return;
    p->touched = true;
    t->risen = arena_grow(&t->arena, t->risen, sizeof *t->risen, t->nrisen, &t->cap_risen);
    t->risen[t->nrisen++] = found;
}

static void take_count(struct training *t, uint32_t left, uint32_t right, uint32_t place)
{
    t->pairs[find_pair(t, left, right)].count -= (int64_t)t->counts[t->row[place].piece];
}

// ---- the heap ----------------------------------------------------------------------------------
static bool is_better(const struct candidate *a, const struct candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void push(struct training *t, struct candidate c)
{
    t->heap = arena_grow(&t->arena, t->heap, sizeof *t->heap, t->nheap, &t->cap_heap);
    int i = t->nheap++;
    for (; i && is_better(&c, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = c;
}

static struct candidate pop(struct training *t)
{
    struct candidate top = t->heap[0], last = t->heap[--t->nheap];
    int i = 0;
    for (int child; (child = 2 * i + 1) < t->nheap; i = child) {
        if (child + 1 < t->nheap && is_better(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!is_better(&t->heap[child], &last))
            break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = last;
    return top;
}

static void push_risen(struct training *t)
{
    for (int i = 0; i < t->nrisen; i++) {
        struct pair *p = &t->pairs[t->risen[i]];
        p->touched = false;
        if (p->count > 0)
            push(t, (struct candidate){p->count, p->key});
    }
    t->nrisen = 0;
}

// ---- tokens ------------------------------------------------------------------------------------
// The id of a token of these bytes, which are the last of the text; a new one if there is none yet.
static uint32_t find_token(struct training *t, uint64_t at, uint32_t len)
{
    struct bpe_learned *l = t->l;
    const char *s = l->text.data + at;
    uint64_t h = len;
    for (uint32_t i = 0; i < len; i++)
        h = mix(h ^ (unsigned char)s[i]);
    for (size_t i = h;; i++) {
        uint32_t *slot = &t->known.index[i & (t->known.cap - 1)];
        const struct bpe_token *known = &l->tokens[*slot];
        if (*slot && known->len == len && memcmp(l->text.data + known->at, s, len) == 0) {
            l->text.len = at;
            return *slot;
        }
        if (*slot)
            continue;
        *slot = l->ntokens;
        l->tokens[l->ntokens++] = (struct bpe_token){at, len};
        return *slot;
    }
}

static uint32_t join_tokens(struct training *t, uint32_t left, uint32_t right)
{
    struct bpe_learned *l = t->l;
    struct bpe_token a = l->tokens[left], b = l->tokens[right];
    uint64_t at = l->text.len;
    buf_reserve(&l->text, a.len + b.len); // what is copied lies in the same memory
    buf_append(&l->text, l->text.data + a.at, a.len);
    buf_append(&l->text, l->text.data + b.at, b.len);
    return find_token(t, at, a.len + b.len);
}

static int compare_characters(const void *a, const void *b)
{
    uint32_t x = byte_level_character(*(const unsigned char *)a),
             y = byte_level_character(*(const unsigned char *)b);
    return (x > y) - (x < y);
}

// The bytes are tokens from BPE_SPECIAL on, in the order of their characters. ids: of each byte.
static void add_bytes(struct training *t, uint32_t ids[ALPHABET])
{
    unsigned char bytes[ALPHABET];
    for (int i = 0; i < ALPHABET; i++)
        bytes[i] = (unsigned char)i;
    qsort(bytes, sizeof bytes, 1, compare_characters);
    t->l->ntokens = BPE_SPECIAL;
    for (int i = 0; i < ALPHABET; i++) {
        uint64_t at = t->l->text.len;
        buf_putc(&t->l->text, (char)bytes[i]);
        ids[bytes[i]] = find_token(t, at, 1);
    }
}

// ---- training ----------------------------------------------------------------------------------
static int lay_out(struct training *t, const struct piece_counts *pieces, struct err *e)
{
    uint32_t ids[ALPHABET], piece = 0;
    add_bytes(t, ids);
    if (pieces->text.len >= NONE || pieces->n >= NONE)
        return err_set(e, ERR_LIMIT,
                       "%zu different pieces of %zu bytes: the limit is 4 GiB of them; train on "
                       "fewer texts",
                       pieces->n, pieces->text.len);
    t->row = calloc(pieces->text.len + 1, sizeof *t->row);
    t->counts = calloc(pieces->n + 1, sizeof *t->counts);
    if (!t->row || !t->counts)
        return err_set(e, ERR_NOMEM, "there is no memory for %zu bytes of pieces",
                       pieces->text.len);
    for (size_t s = 0; s < pieces->cap; s++) {
        const struct piece_count *p = &pieces->slots[s];
        if (!p->count)
            continue;
        t->counts[piece] = p->count;
        for (uint32_t i = 0; i < p->len; i++, t->nrow++)
            t->row[t->nrow] = (struct symbol){
                .id = ids[(unsigned char)pieces->text.data[p->at + i]],
                .before = i ? t->nrow - 1 : NONE,
                .behind = i + 1 < p->len ? t->nrow + 1 : NONE,
                .piece = piece,
            };
        piece++;
    }
    for (uint32_t i = 0; i < t->nrow; i++)
        if (t->row[i].behind != NONE)
            add_place(t, t->row[i].id, t->row[i + 1].id, i);
    push_risen(t);
    return 0;
}

static void merge_at(struct training *t, uint32_t place, uint32_t left, uint32_t right, uint32_t id)
{
    struct symbol *s = &t->row[place];
    if (s->id != left || s->behind == NONE || t->row[s->behind].id != right)
        return;
    struct symbol *gone = &t->row[s->behind];
    if (s->before != NONE) {
        take_count(t, t->row[s->before].id, left, place);
        add_place(t, t->row[s->before].id, id, s->before);
    }
    if (gone->behind != NONE) {
        take_count(t, right, t->row[gone->behind].id, place);
        add_place(t, id, t->row[gone->behind].id, place);
        t->row[gone->behind].before = place;
    }
    s->id = id;
    s->behind = gone->behind;
    gone->id = NONE;
}

static int compare_places(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Merges a pair wherever it stands, in a piece from left to right.
static void merge_pair(struct training *t, uint32_t which)
{
    struct pair p = t->pairs[which];
    uint32_t left = (uint32_t)(p.key >> 32), right = (uint32_t)p.key;
    uint32_t id = join_tokens(t, left, right);
    t->pairs[which] = (struct pair){.key = p.key};
    for (uint32_t i = 1; i < p.n; i++)
        if (p.places[i - 1] > p.places[i]) {
            qsort(p.places, p.n, sizeof *p.places, compare_places);
            break;
        }
    for (uint32_t i = 0; i < p.n; i++)
        merge_at(t, p.places[i], left, right, id);
    free(p.places);
    t->pairs[which].count = 0; // of overlapping ones, as in "aaa", some were taken twice
    push_risen(t);
    t->l->merges[t->l->nmerges++] = (struct bpe_merge){left, right};
}

static int learn(struct training *t, uint32_t vocab, uint32_t most_merges,
                 int (*tick)(void *context, uint32_t tokens, struct err *e), void *context,
                 struct err *e)
{
    int rc = 0;
    while (!rc && t->nheap && t->l->ntokens < vocab && t->l->nmerges < most_merges) {
        struct candidate c = pop(t);
        uint32_t which = find_pair(t, (uint32_t)(c.key >> 32), (uint32_t)c.key);
        int64_t now = t->pairs[which].count;
        if (now == c.count)
            merge_pair(t, which);
        else if (now > 0)
            push(t, (struct candidate){now, c.key});
        if (t->l->nmerges % 64 == 0)
            rc = tick(context, t->l->ntokens, e);
    }
    return rc;
}

int bpe_train(struct bpe_learned *l, const struct piece_counts *pieces, uint32_t vocab,
              int (*tick)(void *context, uint32_t tokens, struct err *e), void *context,
              struct err *e)
{
    struct training t = {.l = l, .known.cap = 1024};
    uint32_t most = 2 * vocab; // more merges than tokens: only where two make the same
    PRE(vocab >= BPE_SPECIAL + 256 && vocab <= UINT32_MAX / 4);
    *l = (struct bpe_learned){.tokens = heap_alloc(vocab * sizeof *l->tokens),
                              .merges = heap_alloc(most * sizeof *l->merges)};
    while (t.known.cap < 2 * (size_t)vocab)
        t.known.cap *= 2;
    t.known.index = heap_alloc(t.known.cap * sizeof *t.known.index);
    int rc = lay_out(&t, pieces, e);
    if (!rc)
        rc = learn(&t, vocab, most, tick, context, e);
    for (int i = 0; i < t.npairs; i++)
        free(t.pairs[i].places);
    free(t.row);
    free(t.counts);
    free(t.index);
    free(t.known.index);
    arena_clear(&t.arena);
    if (rc)
        bpe_learned_clear(l);
    return rc;
}

void bpe_learned_clear(struct bpe_learned *l)
{
    buf_clear(&l->text);
    free(l->tokens);
    free(l->merges);
    *l = (struct bpe_learned){0};
}
