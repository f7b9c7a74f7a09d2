// SPDX-License-Identifier: Apache-2.0
// Digests: xxh3-128 for bytes at rest (fast), SHA-256 for what seals them, FNV-1a for names,
// HMAC-SHA-256 to prove possession of a key. Incremental forms hold no heap memory but xxh3's
// state.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t hi, lo;
};

// ---- hexadecimal, with the digits a to f in lower case ----
void hex_print(const void *bytes, size_t n, char *out); // 2n digits and the zero byte
int hex_digit(char c);                                  // of either case; −1: it is none
bool hex_is(const char *text, size_t digits);           // so many digits and no more

struct xxh3; // an opaque streaming state

struct xxh3 *xxh3_new(void);
void xxh3_free(struct xxh3 *x); // null is fine
void xxh3_reset(struct xxh3 *x);
void xxh3_update(struct xxh3 *x, const void *data, size_t len);
struct hash128 xxh3_digest(const struct xxh3 *x);
static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}
void hash128_hex(struct hash128 h, char out[33]);
int hash128_parse(const char *hex, struct hash128 *out); // 0, or −1 if not 32 hex digits

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
};
void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *data, size_t len);
void sha256_final(struct sha256 *s, unsigned char out[32]);
void sha256_hex(const void *data, size_t len, char out[65]);
void hmac_sha256(const void *key, size_t keylen, const void *data, size_t len,
                 unsigned char out[32]);

uint32_t hash_fnv1a32(const char *text);
