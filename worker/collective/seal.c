// SPDX-License-Identifier: Apache-2.0
// What goes from host to host, sealed: AES-128-GCM by OpenSSL. Each direction of a connection has a
// key of its own (greet.c derives it), and its parts, a frame's head and then its body, are numbered
// from 0. The number is the nonce, so it is neither sent nor ever used twice, and a part that was
// changed, left out, sent again or put in another place does not open.
//
// Deliberately not here: new keys within an attempt. A number has 64 bits, and after 2^48 blocks of
// 16 bytes, 4 PiB from one rank to another, the odds that a reader of it all tells it from noise are
// 2^-33.
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "worker/collective/world.h"

struct seal {
    EVP_CIPHER_CTX *gcm;
    uint64_t next; // number of the next part
};

struct seal *seal_new(const unsigned char key[SEAL_KEY], bool sends)
{
    struct seal *s = heap_alloc(sizeof *s);
    s->gcm = EVP_CIPHER_CTX_new();
    if (s->gcm && EVP_CipherInit_ex(s->gcm, EVP_aes_128_gcm(), NULL, key, NULL, sends) == 1)
        return s;
    seal_free(s);
    return NULL;
}

void seal_free(struct seal *s)
{
    if (!s)
        return;
    EVP_CIPHER_CTX_free(s->gcm);
    free(s);
}

static bool begin_part(struct seal *s)
{
    unsigned char nonce[12] = {0};
    memcpy(nonce, &s->next, sizeof s->next);
    s->next++;
    return EVP_CipherInit_ex(s->gcm, NULL, NULL, NULL, nonce, -1) == 1;
}

bool seal_part(struct seal *s, unsigned char *to, const void *from, size_t len)
{
    int n = 0;
    return begin_part(s) && EVP_CipherUpdate(s->gcm, to, &n, from, (int)len) == 1 &&
           EVP_CipherFinal_ex(s->gcm, to + len, &n) == 1 &&
           EVP_CIPHER_CTX_ctrl(s->gcm, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, to + len) == 1;
}

bool seal_open(struct seal *s, unsigned char *at, size_t len, bool first)
{
    int n = 0;
    return (!first || begin_part(s)) && EVP_CipherUpdate(s->gcm, at, &n, at, (int)len) == 1;
}

bool seal_check(struct seal *s, unsigned char tag[SEAL_TAG])
{
    int n = 0;
    unsigned char none[EVP_MAX_BLOCK_LENGTH];
    return EVP_CIPHER_CTX_ctrl(s->gcm, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, tag) == 1 &&
           EVP_CipherFinal_ex(s->gcm, none, &n) == 1;
}
