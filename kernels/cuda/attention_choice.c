// SPDX-License-Identifier: Apache-2.0
// Which calls cuDNN is asked for, and how much of one at a time. See cuda_attention.h.
#include "kernels/cuda/cuda_attention.h"

bool attention_is_plain(const struct attention *a)
{
    const void *at[] = {a->q, a->k, a->v, a->dy, a->y, a->lse, a->out, a->dk, a->dv};
    bool aligned = true;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        aligned = aligned && (uintptr_t)at[i] % 16 == 0;
    bool seen = a->ahead == 0 || (a->ahead >= a->keys && a->back >= a->keys);
    return aligned && a->dtype == DT_BF16 && a->in_order && !a->step && a->queries == a->keys &&
           a->start == 0 && a->heads == a->kv_heads * a->group && (a->d + a->r) % 8 == 0 &&
           a->e % 8 == 0 && seen;
}

// Whether the log-sum-exps of the next portion, an f32 for each row, begin at a multiple of 16
// bytes.
static bool is_aligned(const struct attention *a, const struct attention_portion *p)
{
    return p->batch * p->heads * a->queries % 4 == 0;
}

bool attention_portion(const struct attention *a, int n, struct attention_portion *out)
{
    for (int64_t parts = 1; parts <= a->batch; parts++) {
        *out = (struct attention_portion){a->batch / parts, a->heads};
        if (a->batch % parts == 0 && (parts == 1 || is_aligned(a, out)) && n-- == 0)
            return true;
    }
    for (int64_t parts = 2; parts <= a->kv_heads; parts++) {
        *out = (struct attention_portion){1, a->heads / parts};
        if (a->kv_heads % parts == 0 && is_aligned(a, out) && n-- == 0)
            return true;
    }
    return false;
}
