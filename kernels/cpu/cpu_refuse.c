// SPDX-License-Identifier: Apache-2.0
// How a kernel refuses a call that it does not serve; see cpu_device.h.
#include "kernels/cpu/cpu_device.h"

int op_refuse(const struct op_call *c, struct err *e, const char *what)
{
    return err_set(e, ERR_UNSUPPORTED, "cpu: %s: %s", op_name(c->op), what);
}

int op_want(const struct op_call *c, const struct tensor *t, enum dtype want, struct err *e)
{
    if (t->dtype == want)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "cpu: %s: an operand is %s, not %s", op_name(c->op),
                   dtype_name(t->dtype), dtype_name(want));
}
