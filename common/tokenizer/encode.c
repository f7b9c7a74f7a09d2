// SPDX-License-Identifier: Apache-2.0
// Text to ids. See pipeline.h.
//
// Each pre-tokenizer cuts a piece and hands every part to the next one at once, so that no list of pieces
// is ever made. What it changes lies in a buffer of its own, until its next piece comes.
#include "common/base/utf8.h"
#include "common/tokenizer/pipeline.h"

struct encoding {
    const struct pipeline *p;
    struct encode_work *w;
    struct token_ids *out;
    struct err *e;
};
struct piece {
    const char *s;
    size_t n;
    bool first; // begins where the text begins
};
#define METASPACE "▁"

static int put_piece(struct encoding *x, int step, struct piece piece);

void encode_work_init(struct encode_work *w)
{
    *w = (struct encode_work){0};
    bpe_work_init(&w->bpe);
}

void encode_work_clear(struct encode_work *w)
{
    bpe_work_clear(&w->bpe);
    regex_room_free(w->regex);
    buf_clear(&w->valid);
    buf_clear(&w->turns[0]);
    buf_clear(&w->turns[1]);
    for (int i = 0; i < PIPELINE_STEPS; i++)
        buf_clear(&w->pieces[i]);
}

// ---- splitting ---------------------------------------------------------------------------------
// The parts of a piece come one after the other, each found or standing between; by the behaviour they
// become pieces. `held` is what may still grow.
struct splitting {
    struct encoding *x;
    const struct pre_tokenizer *by;
    struct piece piece;
    int step;
    bool is_held, held_found;
    size_t from, to; // of what is held
};

static int release_held(struct splitting *s)
{
    if (!s->is_held || s->from == s->to)
        return 0;
    s->is_held = false;
    return put_piece(
        s->x, s->step + 1,
        (struct piece){s->piece.s + s->from, s->to - s->from, s->piece.first && s->from == 0});
}

static int put_part(struct splitting *s, size_t from, size_t to, bool found)
{
    enum split_behavior behavior = s->by->behavior;
    bool joins = false;
    found ^= s->by->invert;
    if (behavior == SPLIT_CONTIGUOUS)
        joins = s->is_held && found == s->held_found;
    else if (behavior == SPLIT_MERGED_WITH_PREVIOUS)
        joins = s->is_held && found && !s->held_found;
    else if (behavior == SPLIT_MERGED_WITH_NEXT)
        joins = s->is_held && !found && s->held_found;
    else if (behavior == SPLIT_REMOVED && found)
        return release_held(s);
    int rc = joins ? 0 : release_held(s);
    if (!joins)
        s->from = from;
    s->to = to;
    s->is_held = true;
    s->held_found = found;
    return rc;
}

// The next match at or behind `at`: 1, or 0, or −1 with an error.
static int find_next(struct encoding *x, const struct pre_tokenizer *by, struct piece piece,
                     size_t at, size_t *from, size_t *to)
{
    const char *s = piece.s + at, *end = piece.s + piece.n, *a = NULL, *b = NULL;
    bool found = false;
    if (by->known) {
        found = by->known(s, end, &a, &b);
    } else if (by->class.n) {
        found = class_pattern_find(&by->class, s, end, &a, &b);
    } else if (by->regex) {
        if (!x->w->regex)
            x->w->regex = regex_room_new();
        return regex_pattern_find(by->regex, x->w->regex, piece.s, piece.n, at, from, to, x->e);
    } else if (by->string.n) {
        a = memmem(s, (size_t)(end - s), by->string.s, by->string.n);
        b = a ? a + by->string.n : NULL;
        found = a != NULL;
    } else {
        size_t n = 0;
        for (a = s; a < end && !found; a += found ? 0 : n)
            found = char_is_numeric(char_at(a, &n));
        b = a + n;
    }
    *from = found ? (size_t)(a - piece.s) : 0;
    *to = found ? (size_t)(b - piece.s) : 0;
    return found;
}

static int split_piece(struct encoding *x, int step, const struct pre_tokenizer *by,
                       struct piece piece)
{
    struct splitting s = {.x = x, .by = by, .piece = piece, .step = step};
    size_t done = 0, from, to;
    int rc = 0, found = 1;
    while (!rc && done < piece.n) {
        found = find_next(x, by, piece, done, &from, &to);
        if (found < 1)
            break;
        if (done < from)
            rc = put_part(&s, done, from, false);
        if (!rc)
            rc = put_part(&s, from, to, true);
        done = to;
    }
    if (found < 0)
        return ERR_LIMIT;
    if (!rc && done < piece.n)
        rc = put_part(&s, done, piece.n, false);
    return rc ? rc : release_held(&s);
}

// ---- the steps ---------------------------------------------------------------------------------
static int put_byte_level(struct encoding *x, int step, const struct pre_tokenizer *by,
                          struct piece piece)
{
    struct buf *own = &x->w->pieces[step];
    if (by->prefix_space && piece.s[0] != ' ') {
        buf_reset(own);
        buf_putc(own, ' ');
        buf_append(own, piece.s, piece.n);
        piece = (struct piece){own->data, own->len, piece.first};
    }
    return by->known ? split_piece(x, step, by, piece) : put_piece(x, step + 1, piece);
}

static int put_metaspace(struct encoding *x, int step, const struct pre_tokenizer *by,
                         struct piece piece)
{
    static const struct literal space = {" ", 1}, block = {METASPACE, sizeof METASPACE - 1};
    struct buf *own = &x->w->pieces[step];
    bool led = piece.s[0] == ' ' || (piece.n >= block.n && memcmp(piece.s, block.s, block.n) == 0);
    buf_reset(own);
    if (!led && (by->prepend == PREPEND_ALWAYS || (by->prepend == PREPEND_FIRST && piece.first)))
        buf_append(own, block.s, block.n);
    replace_all(space, block, piece.s, piece.n, TOKENIZER_MAX_TEXT, own);
    if (own->len > TOKENIZER_MAX_TEXT)
        return err_set(x->e, ERR_LIMIT, "with %s for spaces it is longer than %d bytes", METASPACE,
                       TOKENIZER_MAX_TEXT);
    piece = (struct piece){own->data, own->len, piece.first};
    return by->split ? split_piece(x, step, by, piece) : put_piece(x, step + 1, piece);
}

static int put_piece(struct encoding *x, int step, struct piece piece)
{
    if (!piece.n)
        return 0;
    if (step == x->p->npre_tokenizers)
        return bpe_encode(&x->p->bpe, &x->w->bpe, piece.s, piece.n, x->out, x->e);
    const struct pre_tokenizer *by = &x->p->pre_tokenizers[step];
    if (by->kind == PRE_BYTE_LEVEL)
        return put_byte_level(x, step, by, piece);
    return by->kind == PRE_METASPACE ? put_metaspace(x, step, by, piece)
                                     : split_piece(x, step, by, piece);
}

// A gap of the text, as it stands: what is left of it between the tokens looked for in normal form.
static int put_gap(struct encoding *x, const char *s, size_t n, bool first)
{
    const struct pipeline *p = x->p;
    struct literal text;
    struct added_scan scan;
    struct added_piece at;
    int rc = normalize(p, s, n, x->w->turns, &text, x->e);
    if (rc)
        return rc;
    added_scan_begin(&scan, &p->normal, p->added, text.s, text.n);
    while (!rc && added_scan_next(&scan, &at))
        if (at.token >= 0)
            token_ids_put(x->out, p->added[at.token].id);
        else
            rc = put_piece(x, 0,
                           (struct piece){text.s + at.from, at.to - at.from, first && !at.from});
    return rc;
}

struct literal make_valid(const char *text, size_t bytes, struct buf *valid)
{
    size_t copied = 0, whole;
    buf_reset(valid);
    for (size_t i = 0, n; i < bytes; i += n) {
        n = 1;
        if ((unsigned char)text[i] < 0x80)
            continue;
        n = utf8_part(text + i, bytes - i, &whole);
        if (n == whole)
            continue;
        buf_append(valid, text + copied, i - copied);
        buf_puts(valid, "\ufffd");
        copied = i + n;
    }
    if (!copied)
        return (struct literal){text, bytes};
    buf_append(valid, text + copied, bytes - copied);
    return (struct literal){valid->data, valid->len};
}

int pipeline_encode(const struct pipeline *p, struct encode_work *w, const char *text, size_t bytes,
                    bool special, struct token_ids *out, struct err *e)
{
    struct encoding x = {p, w, out, e};
    struct literal valid = make_valid(text, bytes, &w->valid);
    struct added_scan scan;
    struct added_piece at;
    int rc = 0;
    if (special)
        token_ids_append(out, p->before.data, p->before.n);
    added_scan_begin(&scan, &p->raw, p->added, valid.s, valid.n);
    while (!rc && added_scan_next(&scan, &at))
        if (at.token >= 0)
            token_ids_put(out, p->added[at.token].id);
        else
            rc = put_gap(&x, valid.s + at.from, at.to - at.from, !at.from);
    if (special && !rc)
        token_ids_append(out, p->behind.data, p->behind.n);
    return rc;
}
