// SPDX-License-Identifier: Apache-2.0
// Random programs of the language of models: a text that follows from a seed, and what it means.
//
// A program is a list of lines, each a function of the language with its operands; from one list come
// the text, which weft reads, and the loss by named.h, which knows names alone. Blocks of lines make
// what a layer adds to the residual: products with one and several dimensions, biases, gates, norms,
// softmaxes over any dimension, attention as one op and written out, means that broadcast, renamed
// dimensions, products of two values, parameters read twice, draws, experts.
#pragma once
#include "common/base/buf.h"
#include "tests/support/named.h"

enum { TEXT_LINES = 96, TEXT_VARS = 128 };

// What the text reads; the other sizes of it are in random_text.c.
enum { TEXT_BATCH = 12, TEXT_SEQ = 12, TEXT_VOCAB = 21 };
// A size that is padded: only what is within it has a meaning.
enum { TEXT_REST = 5, TEXT_REST_PADDED = 8 };

// What a program has, and so what its meshes may have.
enum { TEXT_EXPERTS = 1 };

enum line_kind {
    LINE_TOKENS,    // embed(tokens, table)
    LINE_POSITIONS, // embed(positions, table)
    LINE_WEIGH,     // x @ weight, with a bias where there is one
    LINE_STACK,     // three of them at once
    LINE_PRODUCT,   // x @ y, `dim` kept
    LINE_MAP,
    LINE_OPERATE,
    LINE_BESIDE, // x sign a parameter
    LINE_SCALE,
    LINE_NORM,
    LINE_SOFTMAX,
    LINE_SUM,
    LINE_MEAN,
    LINE_RENAME,
    LINE_SWAP,
    LINE_CAUSAL,
    LINE_ROTARY,
    LINE_ATTENTION,
    LINE_DROPOUT,
    LINE_NORMAL,
    LINE_TOP,
    LINE_SLOTS,
    LINE_DISPATCH,
    LINE_COMBINE,
    LINE_CARRY, // the residual becomes this
    LINE_LOSS,
    LINE_SQUARES, // loss += number · mean(x · x)
};

// Functions of one number.
enum { MAP_TANH = 1, MAP_SIGMOID = 4, MAPS };
struct text_map {
    const char *name;
    double (*f)(double);
};
extern const struct text_map text_maps[MAPS];

struct text_param {
    const char *name; // under the layer's path
    const char *leaf; // "/weight"
    struct named shape;
};

struct text_line {
    enum line_kind kind;
    int out[3], in[3];
    struct text_param param, bias; // shape.n = 0: none
    const char *dim, *to;
    char sign;
    int choice;
    double number, more;
};

struct random_text {
    uint64_t seed;
    int layers;
    unsigned has;
    struct text_line lines[TEXT_LINES];
    int n, body, tail; // lines before the layers, of a layer from `body`, behind them from `tail`
    struct named vars[TEXT_VARS]; // their dimensions
    int nvars, x;                 // x: the residual
    int64_t vocab;                // 24, or fewer and padded to as many
    int asked;                    // questions put to the seed
    struct arena *a;
    struct buf text;
};

// The text belongs to the caller (buf_clear), the rest to the arena.
void random_text_make(struct random_text *t, uint64_t seed, struct arena *a);

// The loss of a step over the whole batch. `find` gives a parameter's numbers by its whole path.
struct text_inputs {
    const double *tokens, *targets; // [batch, seq]
    uint64_t seed;                  // of the draws
    uint32_t step;
    const double *(*find)(void *ctx, const char *path);
    void *ctx;
};
double random_text_loss(const struct random_text *t, const struct text_inputs *in);
