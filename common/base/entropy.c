// SPDX-License-Identifier: Apache-2.0
// Random bytes; see entropy.h.
#include "common/base/entropy.h"

#include <sys/random.h>
#include <sys/types.h>

#include "common/base/hash.h"

int entropy_bytes(void *out, size_t n, struct err *e)
{
    if (getrandom(out, n, 0) != (ssize_t)n) // up to 256 bytes are never cut short
        return err_errno(e, ERR_INTERNAL, "cannot get random bytes");
    return 0;
}

int entropy_id(char out[ID_LEN], struct err *e)
{
    unsigned char b[16];
    int rc = entropy_bytes(b, sizeof b, e);
    out[0] = 0;
    if (!rc)
        hex_print(b, sizeof b, out);
    return rc;
}
