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
    {"gelu", {X}, NULL, OP_GELU, "x/2 · (1 + tanh(√(2/π)(x + 0.044715x³)))"},
    {"relu", {X}, NULL, OP_RELU, "max(x, 0)"},
    {"silu", {X}, NULL, OP_SILU, "x / (1 + e^−x)"},
    {"sigmoid", {X}, NULL, OP_SIGMOID, "1 / (1 + e^−x)"},
    {"tanh", {X}, NULL, OP_TANH, "the hyperbolic tangent"},
    {"softplus", {X}, NULL, OP_SOFTPLUS, "ln(1 + e^x)"},
    {"exp", {X}, NULL, OP_EXP, "e^x"},
    {"log", {X}, NULL, OP_LOG, "ln x"},
    {"sqrt", {X}, call_sqrt, OP_NONE, "√x, of a value above 0"},
    {"f32",
     {X},
     call_f32,
     OP_NONE,
     "x in f32, whatever precision.compute is; so is what it is read with"},
    {"compute", {X}, call_compute, OP_NONE, "x in precision.compute again"},
    // ---- layers ----
    {"embed",
     {MUST("ids", WANT_VALUE), MUST("table", WANT_WEIGHT)},
     call_embed,
     OP_NONE,
     "the table's row of each id"},
    {"linear",
     {X, MUST("weight", WANT_WEIGHT), MAY("bias", WANT_NUMBER)},
     call_linear,
     OP_NONE,
     "x @ weight, and a bias over what the weight brings unless bias = 0"},
    {"unread",
     {MUST("weight", WANT_WEIGHT)},
     call_unread,
     OP_NONE,
     "0, to be added to the loss: the parameter is kept, saved and decayed, and nothing reads it"},
    {"layernorm",
     {X, MAY("path", WANT_PATH), MAY("eps", WANT_NUMBER)},
     call_layernorm,
     OP_NONE,
     "(x − mean) / √(variance + eps) of the last dimension; · weight + bias where a path is given"},
    {"rmsnorm",
     {X, MAY("path", WANT_PATH), MAY("eps", WANT_NUMBER)},
     call_rmsnorm,
     OP_NONE,
     "x / √(mean x² + eps) of the last dimension; · weight where a path is given"},
    {"rmsnorm_shift",
     {X, MUST("path", WANT_PATH), MAY("eps", WANT_NUMBER)},
     call_rmsnorm_shift,
     OP_NONE,
     "rmsnorm · weight + bias"},
    {"rotary",
     {X, MAY("theta", WANT_NUMBER), MAY("offset", WANT_NUMBER), MAY("pairs", WANT_NUMBER),
      MAY("sweep", WANT_NUMBER), MAY("gain", WANT_NUMBER), MAY("linear", WANT_NUMBER),
      MAY("llama3", WANT_NUMBER), MAY("yarn", WANT_NUMBER), MAY("length", WANT_NUMBER),
      MAY("slow", WANT_NUMBER), MAY("fast", WANT_NUMBER)},
     call_rotary,
     OP_NONE,
     "x [.., heads, head_dim] turned by its positions; wavelengths to the base of theta"},
    {"attention",
     {MUST("q", WANT_VALUE), MUST("k", WANT_VALUE), MUST("v", WANT_VALUE),
      MAY("dropout", WANT_NUMBER), MAY("qr", WANT_VALUE), MAY("kr", WANT_VALUE),
      MAY("window", WANT_NUMBER), MAY("cap", WANT_NUMBER), MAY("scale", WANT_NUMBER),
      MAY("causal", WANT_NUMBER)},
     call_attention,
     OP_NONE,
     "softmax(q·k / √head_dim) · v over the keys not after the query; fewer key heads are shared"},
    {"causal",
     {X, MAY("window", WANT_NUMBER)},
     call_causal,
     OP_NONE,
     "scores [.., seq, key] without those of keys that come after the query"},
    // ---- draws ----
    {"dropout",
     {X, MAY("rate", WANT_NUMBER)},
     call_dropout,
     OP_NONE,
     "a share of x dropped and the rest scaled up, in training; rate: by default size `dropout`"},
    {"normal",
     {MUST("like", WANT_VALUE), MUST("path", WANT_PATH)},
     call_normal,
     OP_NONE,
     "standard normals shaped like a value; outside training 0"},
    // ---- over dimensions ----
    {"sum", {X, DIMS}, call_sum, OP_NONE, "the sum over these dimensions; without one over all"},
    {"mean", {X, DIMS}, call_mean, OP_NONE, "the mean over these dimensions; without one over all"},
    {"softmax", {X, MUST("d", WANT_DIM)}, call_softmax, OP_NONE, "e^x / Σ e^x over a dimension"},
    {"swap", {X}, call_swap, OP_NONE, "x with its first two dimensions exchanged"},
    // ---- experts ----
    {"top",
     {MUST("scores", WANT_VALUE), MUST("choices", WANT_NUMBER), MAY("bias", WANT_PATH)},
     call_top,
     OP_NONE,
     "w, id: each token's best scores [.., choice] and whose; a bias counts for choosing alone"},
    {"slots",
     {MUST("id", WANT_VALUE), MUST("w", WANT_VALUE), MUST("experts", WANT_NUMBER),
      MUST("capacity", WANT_NUMBER), MAY("group", WANT_NUMBER), MAY("bias", WANT_PATH),
      MAY("rate", WANT_NUMBER)},
     call_slots,
     OP_NONE,
     "slot, chosen: places of floor(capacity · seq · group / experts) an expert; the bias follows "
     "loads"},
    {"dispatch",
     {X, MUST("slot", WANT_VALUE)},
     call_dispatch,
     OP_NONE,
     "the tokens in their places: [group, expert, capacity, embed]"},
    {"combine",
     {X, MUST("slot", WANT_VALUE), MUST("w", WANT_VALUE)},
     call_combine,
     OP_NONE,
     "of each token the sum of its places' rows, times w"},
    // ---- losses ----
    {"cross_entropy",
     {MUST("logits", WANT_VALUE), MUST("ids", WANT_VALUE)},
     call_cross_entropy,
     OP_NONE,
     "the step's mean of −ln softmax(logits)[id] over the last dimension"},
    {"accuracy",
     {MUST("logits", WANT_VALUE), MUST("ids", WANT_VALUE)},
     call_accuracy,
     OP_NONE,
     "the share of ids that are the greatest logit's"},
    {.name = NULL},
};

const struct function *function_find(const char *name)
{
    for (const struct function *f = functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}
