// SPDX-License-Identifier: Apache-2.0
// Added tokens in a text. See added_tokens.h.
#include "common/tokenizer/added_tokens.h"

#include <stdlib.h>

#include "common/base/err.h"
#include "common/tokenizer/char_class.h"

enum { FIRST_BYTES = 256 };

static uint32_t put_node(struct added_tree *t, unsigned char byte)
{
    if (t->n == t->room) {
        t->room = t->room ? 2 * t->room : 2 * FIRST_BYTES;
        t->nodes = realloc(t->nodes, t->room * sizeof *t->nodes);
        PRE(t->nodes != NULL);
    }
    t->nodes[t->n] = (struct added_node){.token = -1, .byte = byte};
    return (uint32_t)t->n++;
}

static uint32_t find_child(const struct added_tree *t, uint32_t node, unsigned char byte)
{
    uint32_t at = t->nodes[node].child;
    while (at && t->nodes[at].byte != byte)
        at = t->nodes[at].next;
    return at;
}

bool added_tree_put(struct added_tree *t, const char *content, size_t bytes, int32_t token)
{
    while (t->n < FIRST_BYTES)
        put_node(t, (unsigned char)t->n);
    uint32_t node = (unsigned char)content[0];
    for (size_t i = 1; i < bytes; i++) {
        uint32_t child = find_child(t, node, (unsigned char)content[i]);
        if (!child) {
            child = put_node(t, (unsigned char)content[i]);
            t->nodes[child].next = t->nodes[node].child;
            t->nodes[node].child = child;
        }
        node = child;
    }
    if (t->nodes[node].token >= 0)
        return false;
    t->nodes[node].token = token;
    return true;
}

void added_tree_clear(struct added_tree *t)
{
    free(t->nodes);
    *t = (struct added_tree){0};
}

// The next match at or behind `at`; false: there is none.
static bool find_token(const struct added_scan *s, size_t at, struct added_piece *found)
{
    const struct added_tree *t = s->tree;
    for (; t->n && at < s->bytes; at++) {
        uint32_t node = (unsigned char)s->text[at];
        if (!t->nodes[node].child && t->nodes[node].token < 0)
            continue;
        found->token = -1;
        for (size_t to = at + 1;; to++) {
            if (t->nodes[node].token >= 0)
                *found = (struct added_piece){at, to, t->nodes[node].token};
            node = to < s->bytes ? find_child(t, node, (unsigned char)s->text[to]) : 0;
            if (!node)
                break;
        }
        if (found->token >= 0)
            return true;
    }
    return false;
}

static bool is_word_before(const char *text, size_t at)
{
    size_t n;
    return at && char_is_word(char_at(char_before(text + at), &n));
}

static bool is_word_behind(const char *text, size_t bytes, size_t at)
{
    size_t n;
    return at < bytes && char_is_word(char_at(text + at, &n));
}

static size_t skip_spaces_before(const struct added_scan *s, size_t from)
{
    size_t n;
    while (from > s->done) {
        const char *before = char_before(s->text + from);
        if (!(char_classes[char_at(before, &n)] & CHAR_SPACE))
            break;
        from = (size_t)(before - s->text);
    }
    return from > s->done ? from : s->done;
}

static size_t skip_spaces_behind(struct added_scan *s, size_t to)
{
    size_t n;
    if (to >= s->run && to < s->run_end)
        return s->run_end;
    s->run = to;
    while (to < s->bytes && char_classes[char_at(s->text + to, &n)] & CHAR_SPACE)
        to += n;
    return s->run_end = to;
}

void added_scan_begin(struct added_scan *s, const struct added_tree *tree,
                      const struct added_token *tokens, const char *text, size_t bytes)
{
    *s = (struct added_scan){.tree = tree, .tokens = tokens, .text = text, .bytes = bytes};
}

bool added_scan_next(struct added_scan *s, struct added_piece *out)
{
    struct added_piece found;
    while (!s->is_held && find_token(s, s->at, &found)) {
        const struct added_token *t = &s->tokens[found.token];
        s->at = found.to;
        if (t->single_word &&
            (is_word_before(s->text, found.from) || is_word_behind(s->text, s->bytes, found.to)))
            continue;
        if (t->lstrip)
            found.from = skip_spaces_before(s, found.from);
        if (t->rstrip)
            found.to = skip_spaces_behind(s, found.to);
        bool text_before = s->done < found.from;
        *out = text_before ? (struct added_piece){s->done, found.from, -1} : found;
        s->done = found.to;
        if (text_before) {
            s->held = found;
            s->is_held = found.from < found.to;
            return true;
        }
        if (found.from < found.to) // else the token before it took all of it
            return true;
    }
    if (s->is_held) {
        *out = s->held;
        s->is_held = false;
        return true;
    }
    *out = (struct added_piece){s->done, s->bytes, -1};
    s->done = s->bytes;
    return out->from < out->to;
}
