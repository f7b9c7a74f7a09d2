// SPDX-License-Identifier: Apache-2.0
// A program's text as a tree. Nothing is looked up here: that is done by who walks the tree with
// sizes (model_sizes.h) and a graph. Inside common/language/ only.
#pragma once
#include <stdint.h>

#include "common/language/lexer.h"

// What a text may ask for: each is refused where it is passed.
enum {
    MODEL_MAX_BYTES = 1 << 16, // of a text
    MODEL_MAX_DEPTH = 48,      // of nesting, of expressions and of blocks; operators of a line
    MODEL_MAX_TREE = 192,      // of an expression's tree, whatever makes it deep
    MODEL_MAX_PATH = 200,      // bytes of a parameter's path, with those of the blocks around it
    MODEL_MAX_SIZES = 64,      // in the sizes section
    MODEL_MAX_LETS = 256,      // `let` functions
    MODEL_MAX_LIST = 64,       // items of a list
    MODEL_MAX_LAYERS = 1024,   // as struct job_layers counts them
    MODEL_MAX_CALLS = 16,      // of `let` functions inside each other
    MODEL_MAX_STEPS = 1 << 20, // expressions that building a graph looks at
    MODEL_MAX_NODES = 1 << 16, // of the graph of a microbatch
    MODEL_MAX_NAMES = 256,     // bound in one body
    MODEL_MAX_FOREIGN = 512,   // lines of the section `export`
};

enum sign { // of an operator
    SIGN_ADD,
    SIGN_SUB,
    SIGN_MUL,
    SIGN_DIV,
    SIGN_MOD,
    SIGN_CONTRACT, // @
    SIGN_EQ,
    SIGN_NE,
    SIGN_LT,
    SIGN_LE,
    SIGN_GT,
    SIGN_GE,
    SIGN_AND,
    SIGN_OR,
    SIGN_NEGATE,
    SIGN_NOT,
};

enum expr_kind {
    EXPR_NUMBER,
    EXPR_PATH,     // x, attn.out, attn.qkv[3, embed, heads, head] ~ normal(0.02), [_, width]
    EXPR_CALL,     // f(x, key = value)
    EXPR_OPERATOR, // of one or two operands
    EXPR_CHOOSE,   // arg[0] if arg[1] else arg[2]
    EXPR_LIST,     // [1, 2]
    EXPR_BY,       // [1, 2] by name: the list's item of a choice's word
    EXPR_RENAME,   // x{seq as key, heads*}
    EXPR_SCOPE,    // attn: f(x)
    EXPR_TEXT,     // "silu", in the section `export`
};

// A part of a path: a name, or a number that an expression gives.
struct path_part {
    const char *name; // null: `number`
    struct expr *number;
};
struct path {
    int n;
    struct path_part *part;
};

// A dimension as it is written: embed, expert*, 3, _, position = seq; in braces: seq as key.
struct written_dim {
    const char *name; // null: a literal, `size`
    bool star;
    struct expr *size; // null: the size of that name
    const char *as;    // in braces: the new name; null: it stays
};

struct expr {
    enum expr_kind kind;
    struct text_place at;
    double number; // NUMBER
    bool whole;
    enum sign sign;   // OPERATOR
    const char *name; // CALL: of what; BY: the choice; PATH of one name: that; TEXT: what it is
    struct path path; // PATH, SCOPE
    bool has_dims;    // PATH: brackets follow, perhaps empty ones
    struct written_dim *dims; // PATH, RENAME
    int ndims, n;             // n: of arg
    int deep;                 // of the tree below it
    struct expr **arg;        // operands in the order they are written
    const char **keyword;     // CALL: `key` of each argument, null where there is none
    struct expr *init;        // PATH: behind ~, or null
};

enum stmt_kind {
    STMT_BIND, // a, b in act_att = e, f    loss += e
    STMT_REPEAT,
    STMT_IF,
    STMT_SCOPE, // attn: and a block; layer and a block
    STMT_REPORT,
    STMT_RETURN,
};

struct stmt {
    enum stmt_kind kind;
    struct text_place at;
    int nnames, n;
    // BIND, REPORT: what is bound; REPEAT: of the width and of the count, or null.
    const char **name;
    struct expr **value; // BIND, REPORT, RETURN; IF: the condition; REPEAT: over what
    bool adds;           // BIND: +=
    const char *point;   // BIND: where it lies, or null
    struct path path;    // SCOPE; of no parts for `layer`, whose paths are those around it
    const char **like;   // REPEAT over a list: the names its widths take in turn
    int nlike;
    struct stmt *body, *otherwise; // blocks, or null
    struct stmt *next;             // in its block
};

// Whether this is a `layer` block, or a block whose path ends in a number, as a repeat's do.
bool stmt_is_layer(const struct stmt *s);

struct let {
    const char *name;
    struct text_place at;
    int n;
    const char **param;
    struct stmt *body;
};

// A line of `sizes` as it is written.
struct written_size {
    const char *name;
    struct text_place at;
    struct expr *value;      // null: a choice
    int nwords;              // of a choice
    const char **word;       // the first is the default
    struct expr *low, *high; // of `in`, or null
    bool below;              // in low ..< high
    struct expr *padded;     // or null
    const char *like, *divides;
    int begin, end;      // of the default in the text
    const char *comment; // "" if none
};

struct syntax {
    const char *heading;
    int nsizes, sizes_cap;
    struct written_size *size;
    int nlets, lets_cap;
    struct let *let;
    struct text_place model; // of the section; line 0: there is none
    struct stmt *body;
    struct foreign_section *foreign; // `export hf` (foreign_section.h), or null
};

const struct let *let_find(const struct syntax *s, const char *name); // or null

// Reads tokens; every statement that is wrong is reported, up to MODEL_MAX_ERRORS.
int syntax_read(struct arena *a, const struct tokens *t, struct syntax *out,
                struct model_errors *errs);
