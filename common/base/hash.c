// SPDX-License-Identifier: Apache-2.0
// Digests. See hash.h.
//
// xxh3-128 is libxxhash's, and this is the only file that includes its header. SHA-256 is FIPS
// 180-4 written plainly: it seals manifests and names jobs, a few kilobytes at a time, so no SHA
// instructions are used.
#include "common/base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/err.h"

// ---- xxh3-128 ----------------------------------------------------------------------------------
struct xxh3 {
    XXH3_state_t *state; // libxxhash allocates it with the alignment its vector code wants
};

struct xxh3 *xxh3_new(void)
{
    struct xxh3 *x = malloc(sizeof *x);
    if (!x || !(x->state = XXH3_createState()))
        err_bug(__FILE__, __LINE__, "out of memory for a digest");
    xxh3_reset(x);
    return x;
}

void xxh3_free(struct xxh3 *x)
{
    if (x)
        XXH3_freeState(x->state);
    free(x);
}

void xxh3_reset(struct xxh3 *x)
{
    XXH3_128bits_reset(x->state);
}

void xxh3_update(struct xxh3 *x, const void *data, size_t len)
{
    if (len) // a null pointer is an error there, even for no bytes
        XXH3_128bits_update(x->state, data, len);
}

struct hash128 xxh3_digest(const struct xxh3 *x)
{
    XXH128_hash_t h = XXH3_128bits_digest(x->state);
    return (struct hash128){.hi = h.high64, .lo = h.low64};
}

// ---- hexadecimal -------------------------------------------------------------------------------
static const char hex_digits[] = "0123456789abcdef";

void hex_print(const void *bytes, size_t n, char *out)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = hex_digits[b[i] >> 4];
        out[2 * i + 1] = hex_digits[b[i] & 15];
    }
    out[2 * n] = 0;
}

static void put_be(unsigned char *out, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        out[i] = (unsigned char)value;
}

void hash128_hex(struct hash128 h, char out[33])
{
    unsigned char bytes[16];
    put_be(bytes, h.hi, 8);
    put_be(bytes + 8, h.lo, 8);
    hex_print(bytes, sizeof bytes, out);
}

int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hex_is(const char *text, size_t digits)
{
    return strspn(text, hex_digits) == digits && !text[digits];
}

int hash128_parse(const char *hex, struct hash128 *out)
{
    uint64_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int v = hex_digit(hex[i]); // the terminating zero is no digit, so this never runs past it
        if (v < 0)
            return -1;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)v;
    }
    if (hex[32])
        return -1;
    *out = (struct hash128){.hi = half[0], .lo = half[1]};
    return 0;
}

// ---- SHA-256 -----------------------------------------------------------------------------------
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void expand_block(const unsigned char *block, uint32_t w[64])
{
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) +
               (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10);
    }
}

static void compress_block(uint32_t h[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    expand_block(block, w);
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t choose = (e & v[5]) ^ (~e & v[6]);
        uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 = v[7] + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
                      choose + round_constants[i] + w[i];
        uint32_t t2 = (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) + majority;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sha256_init(struct sha256 *s)
{
    *s = (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                               0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_update(struct sha256 *s, const void *data, size_t len)
{
    const unsigned char *p = data;
    while (len) {
        size_t at = s->bytes % 64, n = 64 - at < len ? 64 - at : len;
        if (n == 64) {
            compress_block(s->h, p);
        } else {
            memcpy(s->block + at, p, n);
            if (at + n == 64)
                compress_block(s->h, s->block);
        }
        s->bytes += n;
        p += n;
        len -= n;
    }
}

void sha256_final(struct sha256 *s, unsigned char out[32])
{
    static const unsigned char padding[64] = {0x80};
    unsigned char bits[8];
    put_be(bits, s->bytes * 8, 8);
    size_t at = s->bytes % 64;
    sha256_update(s, padding, at < 56 ? 56 - at : 120 - at);
    sha256_update(s, bits, sizeof bits);
    for (int i = 0; i < 8; i++)
        put_be(out + 4 * i, s->h[i], 4);
}

static void digest_sha256(const void *data, size_t len, unsigned char out[32])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_update(&s, data, len);
    sha256_final(&s, out);
}

void sha256_hex(const void *data, size_t len, char out[65])
{
    unsigned char digest[32];
    digest_sha256(data, len, digest);
    hex_print(digest, sizeof digest, out);
}

// ---- HMAC (RFC 2104) and FNV-1a ----------------------------------------------------------------
static void run_hmac_pass(const unsigned char key[64], unsigned char pad, const void *data,
                          size_t len, unsigned char out[32])
{
    unsigned char block[64];
    for (int i = 0; i < 64; i++)
        block[i] = key[i] ^ pad;
    struct sha256 s;
    sha256_init(&s);
    sha256_update(&s, block, sizeof block);
    sha256_update(&s, data, len);
    sha256_final(&s, out);
}

void hmac_sha256(const void *key, size_t keylen, const void *data, size_t len,
                 unsigned char out[32])
{
    unsigned char block[64] = {0}, inner[32];
    if (keylen > sizeof block)
        digest_sha256(key, keylen, block);
    else if (keylen)
        memcpy(block, key, keylen);
    run_hmac_pass(block, 0x36, data, len, inner);
    run_hmac_pass(block, 0x5c, inner, sizeof inner, out);
    explicit_bzero(block, sizeof block);
}

uint32_t hash_fnv1a32(const char *text)
{
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}
