// SPDX-License-Identifier: Apache-2.0
// Digests against the vectors their authors published, and pieces against the whole.
#include <string.h>

#include "common/base/hash.h"
#include "tests/support/digest.h"
#include "tests/unit/unit.h"

static void to_hex(const unsigned char *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++, out += 2) {
        out[0] = "0123456789abcdef"[bytes[i] >> 4];
        out[1] = "0123456789abcdef"[bytes[i] & 15];
    }
    *out = 0;
}

static void fill_pattern(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 131 + (i >> 7));
}

static void sha256_gives_the_digests_of_fips_180(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
         "lmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char hex[65];
        sha256_hex(rows[i].text, strlen(rows[i].text), hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

static void sha256_of_a_million_letters_fed_in_uneven_pieces(void **state)
{
    (void)state;
    char piece[1000], hex[65];
    unsigned char out[32];
    memset(piece, 'a', sizeof piece);
    struct sha256 s;
    sha256_init(&s);
    for (size_t left = 1000000, n = 1; left; left -= n, n = n * 7 % 997 + 1) {
        n = n < left ? n : left;
        sha256_update(&s, piece, n);
    }
    sha256_final(&s, out);
    to_hex(out, 32, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void hmac_gives_the_digests_of_rfc_4231(void **state)
{
    (void)state;
    static const struct {
        unsigned char key_byte; // 0: `key`; 1: the bytes 1, 2, 3, …
        size_t keylen;
        const char *key, *text; // null text: 50 times data_byte
        unsigned char data_byte;
        const char *hex;
    } rows[] = {
        {0x0b, 20, NULL, "Hi There", 0,
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {0, 4, "Jefe", "what do ya want for nothing?", 0,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {0xaa, 20, NULL, NULL, 0xdd,
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {1, 25, NULL, NULL, 0xcd,
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {0xaa, 131, NULL, "Test Using Larger Than Block-Size Key - Hash Key First", 0,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {0xaa, 131, NULL,
         "This is a test using a larger than block-size key and a larger than block-size data. The "
         "key needs to be hashed before being used by the HMAC algorithm.",
         0, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char key[131], data[200], out[32];
        char hex[65];
        for (size_t k = 0; k < rows[i].keylen; k++)
            key[k] = rows[i].key             ? (unsigned char)rows[i].key[k]
                     : rows[i].key_byte == 1 ? (unsigned char)(k + 1)
                                             : rows[i].key_byte;
        size_t n = rows[i].text ? strlen(rows[i].text) : 50;
        memset(data, rows[i].data_byte, sizeof data);
        if (rows[i].text)
            memcpy(data, rows[i].text, n);
        hmac_sha256(key, rows[i].keylen, data, n, out);
        to_hex(out, 32, hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

static void xxh3_gives_the_published_digests(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "99aa06d3014798d86001c324468d497f"},
        {"a", "a96faf705af16834e6c632b61e964e1f"},
        {"The quick brown fox jumps over the lazy dog", "ddd650205ca3e7fa24a1cc2e3a8a7651"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char hex[33];
        hash128_hex(digest_bytes(rows[i].text, strlen(rows[i].text)), hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

static void xxh3_in_pieces_equals_xxh3_at_once(void **state)
{
    (void)state;
    static unsigned char data[5000];
    fill_pattern(data, sizeof data);
    struct xxh3 *x = xxh3_new();
    for (size_t len = 0; len <= sizeof data; len += 61) {
        xxh3_reset(x);
        xxh3_update(x, NULL, 0);
        for (size_t at = 0, n = 1; at < len; at += n, n = n * 3 % 241 + 1) {
            n = n < len - at ? n : len - at;
            xxh3_update(x, data + at, n);
        }
        struct hash128 pieces = xxh3_digest(x), whole = digest_bytes(data, len);
        assert_true(pieces.hi == whole.hi && pieces.lo == whole.lo);
    }
    xxh3_free(x);
    xxh3_free(NULL);
}

static void hexadecimal_digests_read_back_and_nothing_else_does(void **state)
{
    (void)state;
    struct hash128 h, back = {0, 0};
    char hex[33];
    assert_int_equal(hash128_parse("0123456789abcdefFEDCBA9876543210", &h), 0);
    assert_true(h.hi == 0x0123456789abcdefull && h.lo == 0xfedcba9876543210ull);
    hash128_hex(h, hex);
    assert_string_equal(hex, "0123456789abcdeffedcba9876543210");
    assert_int_equal(hash128_parse(hex, &back), 0);
    assert_true(back.hi == h.hi && back.lo == h.lo);
    static const char *const bad[] = {"",
                                      "0123456789abcdef",
                                      "0123456789abcdeffedcba987654321",
                                      "0123456789abcdeffedcba98765432100",
                                      "0123456789abcdeffedcba987654321g",
                                      " 123456789abcdeffedcba9876543210",
                                      "0x23456789abcdeffedcba9876543210",
                                      "@123456789abcdeffedcba9876543210"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(hash128_parse(bad[i], &back), -1);
    assert_true(back.hi == h.hi && back.lo == h.lo);
}

static void hexadecimal_text_is_of_so_many_digits_in_lower_case(void **state)
{
    (void)state;
    assert_true(hex_is("09af", 4));
    assert_false(hex_is("09af", 3) || hex_is("09af", 5) || hex_is("09aF", 4) || hex_is("09ag", 4));
    assert_int_equal(hex_digit('F'), 15);
    assert_int_equal(hex_digit('g'), -1);
}

static void fnv1a_gives_its_authors_values(void **state)
{
    (void)state;
    assert_int_equal(hash_fnv1a32(""), 0x811c9dc5u);
    assert_int_equal(hash_fnv1a32("a"), 0xe40c292cu);
    assert_int_equal(hash_fnv1a32("b"), 0xe70c2de5u);
    assert_int_equal(hash_fnv1a32("foobar"), 0xbf9cf968u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_digests_of_fips_180),
        cmocka_unit_test(sha256_of_a_million_letters_fed_in_uneven_pieces),
        cmocka_unit_test(hmac_gives_the_digests_of_rfc_4231),
        cmocka_unit_test(xxh3_gives_the_published_digests),
        cmocka_unit_test(xxh3_in_pieces_equals_xxh3_at_once),
        cmocka_unit_test(hexadecimal_digests_read_back_and_nothing_else_does),
        cmocka_unit_test(hexadecimal_text_is_of_so_many_digits_in_lower_case),
        cmocka_unit_test(fnv1a_gives_its_authors_values),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
