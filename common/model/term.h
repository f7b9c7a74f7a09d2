// SPDX-License-Identifier: Apache-2.0
// What a program's expressions stand for while its graph is built, and the builder that all files of
// this folder share. Inside common/model/ only.
//
// Who finds a fault calls build_fail() once and returns TERM_NOTHING; from then on nothing is built,
// so that a caller looks at b->failed only where it would read what is not there.
#pragma once
#include "common/base/map.h"
#include "common/model/builder.h"
#include "common/model/draws.h"

enum term_kind {
    TERM_NOTHING, // an argument that was left out, or what failed
    TERM_NUMBER,
    TERM_SIZE,  // a number that is a dimension too
    TERM_LIST,  // of numbers
    TERM_WORD,  // a choice: `size` is the index of the size
    TERM_DIM,   // a dimension by name
    TERM_PARAM, // a parameter as it is written; made when it is read
    TERM_VALUE, // of the graph
    TERM_SUM,   // by · the sum of a value over what is not kept; made when it is read
};

// A dimension: a name and how far it reaches; from `limit` on it is padding, 0: it has none.
struct dimension {
    enum dim dim;
    int64_t extent, limit;
};

// A parameter as it is written; which of its dimensions are summed over its reader knows.
struct written_param {
    const char *path; // "layers/3/attn/out"
    int n;            // of dims; −1: no brackets
    struct dimension dims[MAX_DIMS];
    // What the reader fills in: `_`, its operand's last dimension; and a name that is no size, whose
    // extent is the operand's.
    bool star[MAX_DIMS], last[MAX_DIMS], open[MAX_DIMS];
    const struct expr *at;
    struct initial initial;
};

struct term {
    enum term_kind kind;
    struct number number;              // NUMBER, SIZE, LIST
    struct dimension dim;              // SIZE, DIM
    int size;                          // WORD
    const struct written_param *param; // PARAM
    int value;                         // VALUE, SUM
    int nvalues;                       // VALUE: so many outputs of one op, from this one on
    int nkeep;                         // SUM: the dimensions that stay
    enum dim keep[MAX_DIMS];
    double by;  // SUM
    int nstars; // VALUE: dimensions that a product keeps
    enum dim star[MAX_DIMS];
};

// A parameter that has been made, and where the text first reads it.
struct made_param {
    int value;
    struct text_place at;
    int turn;                        // of all repeats' turns: in which it was made; 0: in none
    const struct made_param *before; // the one made before it
};

struct bound_name {
    const char *name;
    struct term term;
};

struct builder {
    struct graph *g;
    struct arena *arena;
    const struct model_sizes *sizes;
    struct model_run run;
    struct model_errors errs; // at most one
    bool failed;
    const struct expr *at; // the expression at work, for messages
    struct draws draws;
    const char *prefix;       // of paths: "layers/3/attn"; "" at the top
    const char *drawn;        // what a draw is called that has no scope of its own, or null
    const char *dropped;      // the path of the scoped call that a draw is over, or null
    const char *scope;        // of the call that is next, or null
    enum point point;         // that the statement says; NONE: names decide
    struct map params, sites; // path → struct made_param; path → a draw is there
    const struct made_param *newest;
    int64_t layers;   // begun so far
    int turn, turns;  // of a repeat: at work, 0 for none; begun so far
    bool past_layers; // some of them in the model section itself: draws are called after that
    bool in_layer;    // so the graph's scope stays
    bool bound_logits;
    int left_out; // the first line that sampling leaves out and that has layers; 0: none
    struct job_layers counted;
    const char *block; // the outermost named block's path, or null: "embed" or "head"
    int steps, calls;
    bool done;                   // a sample program has its logits
    struct bound_name *bindings; // of the bodies at work, the innermost from `body` on
    int body, nbindings, bindings_cap;
    // The body of a `let`: builder.c's, which knows statements.
    struct term (*run_let)(struct builder *b, const struct let *let, const struct term *arg);
    bool returned;       // a `return` ended the body: its term
    bool ordered, mixed; // the graph's first places of these have their line
    struct term result;
    // Inputs, made when they are first read; −1 before.
    int tokens, positions, targets, last, images, labels;
    bool drawing;     // a sample program's `logits`: values are read at their last position alone
    struct map lasts; // of values read so
};

// ---- faults ----
struct term build_fail(struct builder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// After something was added to the graph: what the graph refused is reported with the place, and what
// it found of the order of a sequence and of microbatches (carry.h) gets its line.
void build_check(struct builder *b);
const char *dims_of(struct builder *b, int value); // "[batch, seq, embed]"

// ---- dimensions ----
struct dimension dimension_of_size(struct builder *b, int size);
bool is_like(const struct builder *b, enum dim dim, enum dim like);
// Where a value of these dimensions lies: as the statement says, else by their names.
void build_at(struct builder *b, int n, const enum dim *dims);
void build_at_like(struct builder *b, int value);

// ---- terms ----
struct term term_number(double value, bool whole);
struct term term_value(int value);
// by · the sum over all dimensions but the n of `keep`.
struct term term_sum(int value, int n, const enum dim *keep, double by);
bool term_has_number(const struct term *t); // NUMBER or SIZE
// The number of an argument, or `otherwise` where it was left out.
double term_number_or(const struct term *t, double otherwise);
int as_value(struct builder *b, struct term t); // 0 where it failed
int as_real(struct builder *b, struct term t);  // the same; ids are refused
// The part of a step's samples that a microbatch has.
double microbatch_share(const struct builder *b);
// Whether a value has a dimension of the data's samples.
bool has_samples(const struct builder *b, int x);
// A program of samples or scores: it has no losses and no reports.
bool ends_at_logits(const struct builder *b);
