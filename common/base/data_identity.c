// SPDX-License-Identifier: Apache-2.0
// Training data compared. See data_identity.h.
#include "common/base/data_identity.h"

#include <stdio.h>

static void print_size(const struct data_identity *d, char out[60])
{
    snprintf(out, 60, "%lld bytes in %lld file%s", (long long)d->bytes, (long long)d->files,
             d->files == 1 ? "" : "s");
}

int data_identity_check(const struct data_identity *before, int64_t step,
                        const struct data_identity *now, struct err *e)
{
    char then[60], here[60];
    print_size(before, then);
    print_size(now, here);
    if (before->files != now->files || before->bytes != now->bytes)
        return err_set(
            e, ERR_INVALID,
            "the training data has changed: the checkpoint of step %lld was trained with "
            "%s, and now there are %s",
            (long long)step, then, here);
    if (!hash128_equal(before->digest, now->digest))
        return err_set(e, ERR_INVALID,
                       "the training data has changed: it is as large as that of the checkpoint of "
                       "step %lld (%s), and holds something else",
                       (long long)step, then);
    return 0;
}
