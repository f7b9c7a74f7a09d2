// SPDX-License-Identifier: Apache-2.0
// Randomness of the decider; see ids.h.
#include "coordinator/decide/ids.h"

#include "common/base/hash.h"
#include "coordinator/decide/coord_state.h"

// SHA-256(seed, number of the draw).
void coord_random(struct coord *c, unsigned char out[32])
{
    struct sha256 s;
    unsigned char n[8];
    c->draws++;
    for (int i = 0; i < 8; i++)
        n[i] = (unsigned char)(c->draws >> (8 * i));
    sha256_init(&s);
    sha256_update(&s, c->config.seed, sizeof c->config.seed);
    sha256_update(&s, n, sizeof n);
    sha256_final(&s, out);
}

void coord_new_id(struct coord *c, char out[ID_LEN])
{
    unsigned char bytes[32];
    coord_random(c, bytes);
    hex_print(bytes, ID_LEN / 2, out);
}
