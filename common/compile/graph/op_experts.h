// SPDX-License-Identifier: Apache-2.0
// Rows of the op table (optable.h) that TOPK, SLOTS and what reads slots have: checks of operands,
// scratch, and the experts and places that a rank has. Inside common/compile/graph/ only.
#pragma once
#include "common/compile/graph/optable.h"

int experts_infer_topk(const struct graph *g, const struct node *n, struct err *e);
int experts_infer_slots(const struct graph *g, const struct node *n, struct err *e);
int experts_infer_dispatch(const struct graph *g, const struct node *n, struct err *e);
int experts_infer_product(const struct graph *g, const struct node *n, struct err *e);
size_t experts_workspace_slots_cpu(const struct op_call *c);
size_t experts_workspace_slots_cuda(const struct op_call *c);
void experts_place_dispatch(const struct graph *g, const struct node *n, const struct op_at *at,
                            struct op_attr *attr);
void experts_place_product(const struct graph *g, const struct node *n, const struct op_at *at,
                           struct op_attr *attr);
