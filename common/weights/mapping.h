// SPDX-License-Identifier: Apache-2.0
// Which element of which parameter is which element of which foreign tensor: the lines `tensors` of a
// program's section `export`, for one model's parameters.
//
// A piece is a box of a parameter that is a box of a tensor. It has an *atom* for each dimension that
// both have: index i of n is entry at + i · step of a dimension on either side. An atom that is a
// dimension by itself has step 1 on both sides and may be cut; rotary orders are two atoms of one
// dimension. A tensor is seen in the dimensions that its line names, [heads, head_dim, embed], not
// in those of its file, [heads · head_dim, embed]: the bytes are the same.
// Inside common/weights/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/compile/graph/graph.h"
#include "common/language/foreign_section.h"

struct weight_param {
    const char *name;
    struct shape shape;        // as the model has it, padding included
    int64_t size[MAX_DIMS];    // without padding
    const char *dim[MAX_DIMS]; // null: the dimension is a stack
};
struct weight_params {
    int n;
    struct weight_param *param;
};
// The parameters of a graph that a model has built. They lie in `a`, but for the names.
void weight_params_find(const struct graph *g, struct arena *a, struct weight_params *out);

enum weight_side { OURS, THEIRS, WEIGHT_SIDES };
struct weight_atom {
    int64_t n;
    int dim[WEIGHT_SIDES];
    int64_t at[WEIGHT_SIDES], step[WEIGHT_SIDES];
};
struct weight_piece {
    int object[WEIGHT_SIDES]; // the parameter, the tensor
    int natoms;
    struct weight_atom atom[2 * MAX_DIMS];
    int64_t fixed[MAX_DIMS]; // of the parameter's dimensions: the one entry; −1: an atom has it
    bool plus_one;           // ours is theirs plus 1
};
struct weight_tensor {
    const char *name;
    struct shape shape, view; // as its file has it; in the dimensions of its line
    int line;                 // of the program
};
struct weight_drop {     // a tensor that may be stored and is not written
    const char *pattern; // with {n} for a number
    int like;            // the tensor that it is equal to; −1: a mask or frequencies
};
struct mapping {
    struct weight_params params;
    int ntensors, tensors_cap, npieces, pieces_cap, ndrops, drops_cap;
    struct weight_tensor *tensors;
    struct weight_piece *pieces;
    struct weight_drop *drops;
    int *first[WEIGHT_SIDES],
        *piece[WEIGHT_SIDES]; // pieces of object k: piece[first[k] … first[k + 1])
};

// Everything is accounted for: every element of every parameter is in one piece, every line has
// parameters, no tensor is made twice. ERR_INVALID: the program's lines do not do that; `e` has the
// line. Everything lies in `a`. Without `prefixed` the prefix of `tensors` is left out.
int mapping_make(struct mapping *m, struct arena *a, const struct model_sizes *sizes,
                 const struct weight_params *params, bool prefixed, struct err *e);
// A tensor for each parameter: of its name, without padding.
void mapping_same(struct mapping *m, struct arena *a, const struct weight_params *params);
// Whether a name is one that a pattern stands for.
bool weight_name_matches(const char *pattern, const char *name);
