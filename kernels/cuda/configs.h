// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt's algorithms for one product can be set to: each algorithm's tiles, clusters, stages,
// parts of a split sum, swizzle and options, one configuration after another. Beyond those that the
// library's heuristic names, and in an order that depends on nothing but the product and the library.
// Whether one runs is for the caller to ask (cublasLtMatmulAlgoCheck). Inside kernels/cuda/ only.
//
//   configs_open → configs_note(what was tried) → configs_near until false, configs_draw until false
#pragma once
#include "kernels/cuda/layout.h"

struct configs;

// For the product's dtypes. `reproducible`: no sum in an order of its own, and no option that is not
// documented. `clusters`: the device has clusters of blocks.
int configs_open(cublasLtHandle_t lt, const struct product *p, bool reproducible, bool clusters,
                 struct configs **out, struct err *e);
void configs_close(struct configs *c);

// An attribute of one, as a number, whatever its width.
uint32_t config_read(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t of);

// Neither call below names this one from now on.
void configs_note(struct configs *c, const cublasLtMatmulAlgo_t *algo);
// The next one that differs from `of` in one thing alone; with another `of` than before it begins
// anew. False: there is none left.
bool configs_near(struct configs *c, const cublasLtMatmulAlgo_t *of, cublasLtMatmulAlgo_t *next);
// The next of all, in steps that go evenly over them, so that the first few are a fair sample.
bool configs_draw(struct configs *c, cublasLtMatmulAlgo_t *next);
