// SPDX-License-Identifier: Apache-2.0
// In place of attention_library.c in a build without cuDNN: our own kernels serve every attention.
#include "kernels/cuda/cuda_attention.h"

int attention_open(struct device *d, struct err *e)
{
    (void)d;
    (void)e;
    return 0;
}

void attention_close(struct device *d)
{
    (void)d;
}

const char *attention_version(void)
{
    return "none";
}

int attention_library_settle(struct stream_q *q, const struct op_call *c, const struct attention *a,
                             struct err *e)
{
    (void)q;
    (void)c;
    (void)a;
    (void)e;
    return 0;
}

int attention_library(struct stream_q *q, const struct op_call *c, const struct attention *a,
                      bool *served, struct err *e)
{
    (void)q;
    (void)c;
    (void)a;
    (void)e;
    *served = false;
    return 0;
}
