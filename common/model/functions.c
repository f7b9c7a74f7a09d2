// SPDX-License-Identifier: Apache-2.0
// The table of functions. See functions.h.
#include "common/model/functions.h"

#include <string.h>

#define X                      \
    {                          \
        "x", WANT_VALUE, false \
    }
#define MAY(n, w)  \
    {              \
        n, w, true \
    }
#define MUST(n, w)  \
    {               \
        n, w, false \
    }
#define DIMS MAY("d", WANT_DIM), MAY("d2", WANT_DIM), MAY("d3", WANT_DIM), MAY("d4", WANT_DIM)

const struct function functions[] = {
    // ---- elementwise ----
    {"gelu", {X}, NULL, OP_GELU},
    {"relu", {X}, NULL, OP_RELU},
    {"silu", {X}, NULL, OP_SILU},
    {"sigmoid", {X}, NULL, OP_SIGMOID},
    {"tanh", {X}, NULL, OP_TANH},
    {"softplus", {X}, NULL, OP_SOFTPLUS},
    {"exp", {X}, NULL, OP_EXP},
    {"log", {X}, NULL, OP_LOG},
    {"sqrt", {X}, call_sqrt, OP_NONE},
    {"f32", {X}, call_f32, OP_NONE},
    {"compute", {X}, call_compute, OP_NONE},
    // ---- layers ----
    {"embed", {MUST("ids", WANT_VALUE), MUST("table", WANT_WEIGHT)}, call_embed, OP_NONE},
    {"linear", {X, MUST("weight", WANT_WEIGHT), MAY("bias", WANT_NUMBER)}, call_linear, OP_NONE},
    {"unread", {MUST("weight", WANT_WEIGHT)}, call_unread, OP_NONE},
    {"layernorm", {X, MAY("path", WANT_PATH), MAY("eps", WANT_NUMBER)}, call_layernorm, OP_NONE},
    {"rmsnorm", {X, MAY("path", WANT_PATH), MAY("eps", WANT_NUMBER)}, call_rmsnorm, OP_NONE},
    {"rmsnorm_shift",
     {X, MUST("path", WANT_PATH), MAY("eps", WANT_NUMBER)},
     call_rmsnorm_shift,
     OP_NONE},
    {"rotary",
     {X, MAY("theta", WANT_NUMBER), MAY("offset", WANT_NUMBER), MAY("pairs", WANT_NUMBER),
      MAY("sweep", WANT_NUMBER), MAY("gain", WANT_NUMBER), MAY("linear", WANT_NUMBER),
      MAY("llama3", WANT_NUMBER), MAY("yarn", WANT_NUMBER), MAY("length", WANT_NUMBER),
      MAY("slow", WANT_NUMBER), MAY("fast", WANT_NUMBER)},
     call_rotary,
     OP_NONE},
    {"attention",
     {MUST("q", WANT_VALUE), MUST("k", WANT_VALUE), MUST("v", WANT_VALUE),
      MAY("dropout", WANT_NUMBER), MAY("qr", WANT_VALUE), MAY("kr", WANT_VALUE),
      MAY("window", WANT_NUMBER), MAY("cap", WANT_NUMBER), MAY("scale", WANT_NUMBER),
      MAY("causal", WANT_NUMBER)},
     call_attention,
     OP_NONE},
    {"causal", {X, MAY("window", WANT_NUMBER)}, call_causal, OP_NONE},
    // ---- draws ----
    {"dropout", {X, MAY("rate", WANT_NUMBER)}, call_dropout, OP_NONE},
    {"normal", {MUST("like", WANT_VALUE), MUST("path", WANT_PATH)}, call_normal, OP_NONE},
    // ---- over dimensions ----
    {"sum", {X, DIMS}, call_sum, OP_NONE},
    {"mean", {X, DIMS}, call_mean, OP_NONE},
    {"softmax", {X, MUST("d", WANT_DIM)}, call_softmax, OP_NONE},
    {"swap", {X}, call_swap, OP_NONE},
    // ---- experts ----
    {"top",
     {MUST("scores", WANT_VALUE), MUST("choices", WANT_NUMBER), MAY("bias", WANT_PATH)},
     call_top,
     OP_NONE},
    {"slots",
     {MUST("id", WANT_VALUE), MUST("w", WANT_VALUE), MUST("experts", WANT_NUMBER),
      MUST("capacity", WANT_NUMBER), MAY("group", WANT_NUMBER), MAY("bias", WANT_PATH),
      MAY("rate", WANT_NUMBER)},
     call_slots,
     OP_NONE},
    {"dispatch", {X, MUST("slot", WANT_VALUE)}, call_dispatch, OP_NONE},
    {"combine", {X, MUST("slot", WANT_VALUE), MUST("w", WANT_VALUE)}, call_combine, OP_NONE},
    // ---- losses ----
    {"cross_entropy",
     {MUST("logits", WANT_VALUE), MUST("ids", WANT_VALUE)},
     call_cross_entropy,
     OP_NONE},
    {"accuracy", {MUST("logits", WANT_VALUE), MUST("ids", WANT_VALUE)}, call_accuracy, OP_NONE},
    {.name = NULL},
};

const struct function *function_find(const char *name)
{
    for (const struct function *f = functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}
