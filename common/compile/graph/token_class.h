// SPDX-License-Identifier: Apache-2.0
// Of what each value of a sample program is made: of weights alone, of the tokens' rows, of rows that
// other tokens read as keys, or of rows in experts' places. cached_keys.c derives from it what a call
// computes of its own tokens and what it finds in caches; refused is what would let a token depend on
// those behind it, or on its place in memory.
//
//     WEIGHTS   made of parameters alone
//     QUERIES   a row for each token, or a number for each pair of a token and a key
//     KEYS      the same with `seq` renamed (x{seq as key})
//     PLACES    rows in experts' places, from DISPATCH to COMBINE
//
// Dimensions along keys that ops tie are one group. Of a value that has one it is known what it holds of
// the keys that a token does not see: anything, numbers so low that their exponential is 0 (causal()
// made them), or 0. Only what is 0 there may be summed over keys.
// Inside common/compile/graph/ only.
#pragma once
#include "common/compile/graph/graph.h"

enum token_class { CLASS_WEIGHTS, CLASS_QUERIES, CLASS_KEYS, CLASS_PLACES };
enum along { ALONG_NONE, ALONG_BATCH, ALONG_ROWS, ALONG_KEYS, ALONG_EXPERTS, ALONG_PLACES };
// What a value holds of keys that the token does not see. WILD: what a cache's unused place leads to may
// be no number.
enum unseen { UNSEEN_ANY, UNSEEN_WILD, UNSEEN_LOW, UNSEEN_ZERO };

struct value_class {
    enum token_class kind;
    bool positions; // KEYS that are the tokens' positions
    int slots;      // PLACES: the value that dealt them
    struct {
        enum along along;
        int group;         // of keys
        enum unseen holds; // of those that are not seen
        int64_t window;    // which are those not in it; 0: those behind the token alone
    } dim[MAX_DIMS];
};
struct key_group {
    int joined;   // with this one; itself: it is the first
    bool fixed;   // read beside numbers for each position: a place for each of model.seq
    bool all;     // something reads all keys of a text
    int64_t sees; // else the widest window through which it is read
};
struct token_classes {
    bool *wanted; // node → the logits depend on it
    struct value_class *value;
    struct key_group *group;
    int ngroups, groups_cap;
};

// The ids of `sample`; everything lies in `a`. ERR_UNSUPPORTED: the line of the model's text, and why.
int token_classes_find(const struct graph *sample, struct arena *a, struct token_classes *out,
                       struct err *e);
// The group of a dimension along keys.
const struct key_group *token_classes_group(const struct token_classes *c, int value, int d);

// Whether a value is one of a text's inputs: the position of its last token; those of its tokens.
bool token_is_last(const struct value *v);
bool token_is_positions(const struct value *v);
// Fails with the node's line of the model's text.
int refuse_line(const struct node *n, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
