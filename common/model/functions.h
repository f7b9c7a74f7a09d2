// SPDX-License-Identifier: Apache-2.0
// The functions of the language: one row each in functions.c; README.md says how to add one.
// Inside common/model/ only.
#pragma once
#include "common/model/term.h"

enum { FUNCTION_ARGS = 12 };

enum want {
    WANT_NONE,   // no such argument
    WANT_VALUE,  // a value of the graph
    WANT_NUMBER, // a number
    WANT_WEIGHT, // a parameter with its dimensions: attn.out[heads, embed]
    WANT_PATH,   // a path alone: norm1
    WANT_DIM,    // a dimension by name
};

struct function {
    const char *name;
    struct argument {
        const char *name; // a caller may write name = …
        enum want want;
        bool optional;
    } arg[FUNCTION_ARGS];
    // The arguments in the row's order, TERM_NOTHING for what is left out. Null: `op` of its value.
    struct term (*call)(struct builder *b, const struct term *arg);
    enum op op;
};

extern const struct function functions[]; // ends with a null name
const struct function *function_find(const char *name);

// The functions that rows call.
struct term call_linear(struct builder *b, const struct term *arg);
struct term call_embed(struct builder *b, const struct term *arg);
struct term call_unread(struct builder *b, const struct term *arg);
struct term call_layernorm(struct builder *b, const struct term *arg);
struct term call_rmsnorm(struct builder *b, const struct term *arg);
struct term call_rmsnorm_shift(struct builder *b, const struct term *arg);
struct term call_rotary(struct builder *b, const struct term *arg);
struct term call_attention(struct builder *b, const struct term *arg);
struct term call_causal(struct builder *b, const struct term *arg);
struct term call_dropout(struct builder *b, const struct term *arg);
struct term call_normal(struct builder *b, const struct term *arg);

struct term call_top(struct builder *b, const struct term *arg);
struct term call_slots(struct builder *b, const struct term *arg);
struct term call_dispatch(struct builder *b, const struct term *arg);
struct term call_combine(struct builder *b, const struct term *arg);

struct term call_sum(struct builder *b, const struct term *arg);
struct term call_mean(struct builder *b, const struct term *arg);
struct term call_softmax(struct builder *b, const struct term *arg);
struct term call_cross_entropy(struct builder *b, const struct term *arg);
struct term call_accuracy(struct builder *b, const struct term *arg);
struct term call_sqrt(struct builder *b, const struct term *arg);
struct term call_swap(struct builder *b, const struct term *arg);
struct term call_f32(struct builder *b, const struct term *arg);
struct term call_compute(struct builder *b, const struct term *arg);

// A dropout's path: the scope's, or the parameter's it is of, or the part's of the model.
const char *draw_path(struct builder *b);
// Whether a share can be dropped; else the fault is reported.
bool draw_rate_fits(struct builder *b, double rate);
