// SPDX-License-Identifier: Apache-2.0
// The section `export hf` of a program: how checkpoints of others call its sizes and parameters, and
// how their tensors are laid out. LANGUAGE.md says what its lines mean; who knows the model's
// parameters and the foreign files acts on them (common/weights). It is no part of the program's
// identity.
#pragma once
#include "common/language/model_sizes.h"

// FIELD, OTHER = VALUE else X
struct foreign_field {
    int n;
    const char **name; // "rope_parameters.rope_theta"
    bool each;         // NAME.{n}: a list with an item for each layer, whose number is `n`
    struct expr *value, *otherwise; // otherwise: or null
};

enum foreign_order { ORDER_SAME, ORDER_TURNED, ORDER_PAIRS, ORDER_HALVES };
struct foreign_factor {
    const char *dim; // of the parameter; null: its stack
    enum foreign_order order;
};
struct foreign_product {
    int n;
    struct foreign_factor *factor; // major first
};
// heads (head_dim + rotary): a product, of which one factor may be a sum of products.
struct foreign_dim {
    struct foreign_product before, after; // around the sum; without one all is `before`
    int nterms;
    struct foreign_product *term; // one for each of the line's parameters
};

struct foreign_path { // of a parameter: "layers/{n}/attn/kv/weight"
    const char *text;
    int item; // of its stack; −1: all of it
};
// PATH, PATH = TENSOR[DIMS] + 1
struct foreign_tensor {
    int n;
    struct foreign_path *path; // none: `drop`
    const char *tensor;        // "/lm_head.weight": a slash in front: without the prefix
    int ndims;
    struct foreign_dim *dim;
    bool plus_one;    // ours is theirs plus 1
    const char *like; // drop: the parameter that it must be equal to, or null
};

enum foreign_kind { FOREIGN_FIELD, FOREIGN_SIZE, FOREIGN_TENSOR, FOREIGN_IF };
struct foreign_line {
    enum foreign_kind kind;
    struct text_place at;
    struct foreign_field field;
    struct foreign_tensor tensor;
    const char *size;                      // SIZE
    struct expr *value;                    // SIZE: what it is; IF: the condition
    struct foreign_line *body, *otherwise; // IF
    struct foreign_line *next;
};

struct foreign_section {
    struct text_place at;
    const char *prefix; // of tensors: "model."
    struct foreign_line *config, *tensors;
};

struct parser;
struct foreign_section *parse_foreign(struct parser *p);

// The section of a program, or null.
const struct foreign_section *foreign_section(const struct model_program *p);

// The value of an expression of sizes. `n` is what the name n stands for; below 0: nothing. False:
// it has none, and errs says why.
bool foreign_number(const struct model_sizes *s, const struct expr *e, int64_t n,
                    struct number *out, struct model_errors *errs);
