// SPDX-License-Identifier: Apache-2.0
// The algorithms that may run the products of one key: what the library names, whether one can run,
// and its launch. product.c and contest.c choose among them. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/layout.h"
#include "kernels/cuda/switches.h"

enum { PLAN_KEY = 320, PLAN_ALGOS = SWITCH_CANDIDATES_MOST };
enum { CHOICE_WORDS = 8, CHOICE_SIZE = CHOICE_WORDS * 16 + 1 }; // an algorithm as text

// Prints an algorithm as text, and reads it. False: the text is no algorithm.
void choice_print(const cublasLtMatmulAlgo_t *algo, char choice[CHOICE_SIZE]);
bool choice_read(const char *choice, cublasLtMatmulAlgo_t *algo);

// Algorithms are tried in order, from `at` on, until the plan is settled.
struct plan {
    cublasLtHandle_t lt;
    char key[PLAN_KEY];
    struct layout layout;
    cublasLtMatmulAlgo_t algo[PLAN_ALGOS];
    int n, at;
    bool settled;
};

// Asks the library for algorithms; they come best first. Finding none is no error: n is 0 then.
int plan_propose(struct plan *plan, struct device *d, const struct product *p, struct err *e);
// Whether the algorithm can run the product on this device, with the numbers that it asks for.
bool plan_takes(struct plan *plan, const struct product *p, const cublasLtMatmulAlgo_t *algo);

cublasStatus_t plan_launch(struct plan *plan, struct stream_q *q, const struct product *p,
                           const cublasLtMatmulAlgo_t *algo);
// Whether, by the status of a launch, another algorithm may succeed where this one failed.
bool plan_declined(struct stream_q *q, cublasStatus_t rc);
// The error of a launch, the device's own where it has one; 0 if all is well.
int plan_ran(struct stream_q *q, cublasStatus_t rc, struct err *e);
