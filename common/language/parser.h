// SPDX-License-Identifier: Apache-2.0
// The parser's place in the tokens, and what its files share.
// Inside common/language/ only.
//
// A function that meets what it does not expect reports it once and sets `lost`; callers skip to the
// end of the line without reading, and the next line is read as usual.
#pragma once
#include "common/language/syntax.h"

struct parser {
    struct arena *arena;
    const struct token *token; // the next
    struct model_errors *errs;
    int depth;  // of nesting, of expressions and blocks
    bool lost;  // an error of this line has been reported
    bool sizes; // brackets make a list, not a parameter
    bool texts; // what stands in quotes is a value
};

bool parser_sees(const struct parser *p, const char *text); // the next is this sign or name
bool parser_takes(struct parser *p, const char *text);      // and it is read, if it is
void parser_wants(struct parser *p, const char *text);
const char *parser_name(struct parser *p, const char *what);
void parser_fail(struct parser *p, const char *wanted); // "WANTED is missing before TOKEN"
// Whether one more level of nesting may be entered; parser_leave() takes it back.
bool parser_enter(struct parser *p);
void parser_leave(struct parser *p);

bool parser_at_end_of_block(const struct parser *p);
// Skips the block of deeper lines that follows, if one does.
void parser_skip_block(struct parser *p);
// Goes to the next line. After an error it skips the rest of this one, and with `block` the block
// that it heads.
void parser_end_line(struct parser *p, bool block);

// An expression; never null.
struct expr *parse_expression(struct parser *p);
struct path parse_path(struct parser *p);
