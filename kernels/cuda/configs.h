// SPDX-License-Identifier: Apache-2.0
// Names, one after another, the configurations that cuBLASLt's algorithms can have for one product:
// each algorithm's tiles, clusters, stages, parts of a split sum, swizzle and options, also those
// that the library's heuristic does not name. Their order depends on nothing but the product and
// the library. The caller must ask whether one runs (cublasLtMatmulAlgoCheck). Inside kernels/cuda/
// only.
//
//   configs_open → configs_note(what was tried) → configs_near until false, configs_draw until false
#pragma once
#include "kernels/cuda/layout.h"

struct configs;

// `reproducible`: leaves out sums whose order may change from run to run, and custom options, whose
// effect is not documented. `clusters`: the device has clusters of blocks.
int configs_open(cublasLtHandle_t lt, const struct product *p, bool reproducible, bool clusters,
                 struct configs **out, struct err *e);
void configs_close(struct configs *c);

// Returns an attribute of a configuration as a number, whatever its width.
uint32_t config_read(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t of);

// Notes that this one is known: neither call below names it from now on.
void configs_note(struct configs *c, const cublasLtMatmulAlgo_t *algo);
// Names the next one that differs from `of` in a single attribute; begins anew when `of` is another
// than before. False: there is none left.
bool configs_near(struct configs *c, const cublasLtMatmulAlgo_t *of, cublasLtMatmulAlgo_t *next);
// Names the next of all, in steps that spread evenly, so that the first few are a fair sample.
// False: there is none left.
bool configs_draw(struct configs *c, cublasLtMatmulAlgo_t *next);
