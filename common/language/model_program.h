// SPDX-License-Identifier: Apache-2.0
// A program: a model as text, read. LANGUAGE.md says what it means.
//
//   model_program_read()   text → struct model_program, or what is wrong with it
//   model_sizes_resolve()  what a job gives and the defaults → struct model_sizes (model_sizes.h)
//   model_facts_find()     what the rest of weft asks of a model (model_facts.h)
//
// Reading opens no file and looks at nothing but the text, so the text is all that has to travel.
// This folder stands on common/base alone: job reading may use it.
#pragma once
#include "common/language/model_errors.h"
#include "common/language/syntax.h"

enum model_size_kind {
    MODEL_WHOLE,  // a whole number; a dimension too
    MODEL_NUMBER, // any number
    MODEL_LIST,   // of whole numbers
    MODEL_CHOICE, // of words
};
const char *model_size_kind_name(enum model_size_kind k); // "a whole number"

// A key of the job's model section, in the order of the text.
struct model_size {
    const char *name;
    enum model_size_kind kind;
    const char *comment;      // one line of what it is; "" if the text has none
    const char *written;      // the default as the text has it: "embed / heads", "relu"
    bool derived;             // the default reads other sizes
    double min, max;          // of a number and of a list's items
    bool below_max;           // max itself is refused
    const char *like;         // the dimension whose sharding rule it takes, or null
    const char *const *words; // CHOICE, null-terminated; the first is the default. Else null
    struct text_place at;
    const struct written_size *line;
};

struct model_program {
    const char *name;    // "gpt2", "./mine.model": for messages
    const char *text;    // a copy, with a zero byte behind it
    const char *heading; // the comment at the top: what the model is
    int nsizes;
    const struct model_size *sizes;
    const struct syntax *syntax;
};

// Everything lies in errs->arena. 0, or ERR_INVALID and *out null: `errs` has what is wrong, each
// with its place.
int model_program_read(const char *name, const char *text, size_t len,
                       const struct model_program **out, struct model_errors *errs);

// The tokens of a text that can be read. Texts that differ in comments, blanks, line breaks inside
// brackets, the spelling of numbers and the section `export` only are one program.
void model_text_print_tokens(const char *text, struct buf *to);
// The text without its section `export`, which is no part of what a job trains.
const char *model_text_without_export(const char *text, struct arena *a);

// The first line of the heading: what the model is.
const char *model_title(const struct model_program *p, struct arena *a);
// A size by its name: its index, −1: the program has none such.
int model_size_find(const struct model_program *p, const char *name);
// The known name that an unknown one probably stands for, or null.
const char *model_size_suggest(const struct model_program *p, const char *name);

// ---- the programs that come with weft (common/model/programs/*.model) --------------------------
struct model_text {
    const char *name, *text;
};
extern const struct model_text model_texts[];               // ends with a null name
const struct model_text *model_text_find(const char *name); // or null
