// SPDX-License-Identifier: Apache-2.0
// Added tokens: contents that are looked for in a text before anything else is, the leftmost first and
// of those the longest. Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *content; // borrowed
    size_t bytes;
    int32_t id;
    bool single_word;    // counts only where no word stands right before or behind it
    bool lstrip, rstrip; // takes the spaces before it, behind it
    bool normalized;     // is looked for in the normalized text
    bool special;
    const char *shown; // what it decodes to: its content, of a normalized one in normal form
    size_t shown_bytes;
    bool hidden; // what is shown is a special token's content: left out without special tokens
};

// Contents as a tree of bytes. A zeroed one is empty and safe to clear.
struct added_tree {
    struct added_node {
        uint32_t child, next; // the first one below it, the next one beside it; 0: none
        int32_t token;        // index of a token that ends here; −1: none
        unsigned char byte;
    } * nodes; // of them the first 256 are the first bytes
    size_t n, room;
};

// False: a token of this content is there.
bool added_tree_put(struct added_tree *t, const char *content, size_t bytes, int32_t token);
void added_tree_clear(struct added_tree *t);

// A text cut at the tokens that stand in it. _next gives tokens and what stands between them, in order,
// until it returns false. (A token that takes the spaces behind it does not keep another from beginning
// among them: what stands there is then given twice, as `tokenizers` does.)
struct added_scan {
    const struct added_tree *tree;
    const struct added_token *tokens;
    const char *text;
    size_t bytes, at, done; // matches are looked for from `at`; what is before `done` was given
    size_t run, run_end;    // spaces behind the last token that takes them
    struct added_piece {
        size_t from, to;
        int32_t token; // −1: text between
    } held;            // comes after what stands before it
    bool is_held;
};
void added_scan_begin(struct added_scan *s, const struct added_tree *tree,
                      const struct added_token *tokens, const char *text, size_t bytes);
bool added_scan_next(struct added_scan *s, struct added_piece *out);
