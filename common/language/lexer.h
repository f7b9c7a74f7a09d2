// SPDX-License-Identifier: Apache-2.0
// A program's text as tokens. Lines end statements and indentation makes blocks, but not inside
// brackets; a comment reaches from # to the line's end. Inside common/language/ only.
#pragma once
#include <stdbool.h>

#include "common/language/model_errors.h"

enum token_kind {
    TOKEN_END,
    TOKEN_NEWLINE,
    TOKEN_INDENT, // the next line is deeper than the one before
    TOKEN_DEDENT, // a block ends; one for each
    TOKEN_NAME,   // [a-zA-Z_][a-zA-Z0-9_]*
    TOKEN_NUMBER, // 12, 0.02, 1e-5
    TOKEN_WORD,   // what begins like a number and is none: 124m, 1.3b
    TOKEN_SIGN,   // an operator or a bracket
    TOKEN_TEXT,   // "silu": of the section `export` alone
};

struct token {
    enum token_kind kind;
    struct text_place at;
    const char *text;    // NAME, WORD and SIGN as written ("·" is "@"), TEXT without its quotes
    double number;       // NUMBER
    bool whole;          // NUMBER: written without a point and an exponent
    int begin, end;      // bytes of the text
    const char *comment; // NEWLINE: the line's comment without its #, or null
};

struct tokens {
    struct token *token; // the last is TOKEN_END
    int n, cap;
    const char *heading; // the comment lines at the top of the text, joined; "" if none
};

// Errors go to `errs`; what follows one is read on, so that several are reported at once.
int lexer_read(struct arena *a, const char *text, int len, struct tokens *out,
               struct model_errors *errs);
