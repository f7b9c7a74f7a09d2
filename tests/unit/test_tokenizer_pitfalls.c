// SPDX-License-Identifier: Apache-2.0
// Where tokenizers go wrong: small ones, each with a text whose ids show it.
//
// The ids and their texts are what PyPI's `tokenizers` 0.23.3 gives for the same file:
//   t = Tokenizer.from_str(FILE); ids = t.encode(TEXT, add_special_tokens=False).ids
//   t.decode(ids, skip_special_tokens=False)
// Tables hold ` for the quotation marks of JSON.
#include <stdio.h>
#include <string.h>

#include "common/tokenizer/tokenizer.h"
#include "tests/unit/unit.h"

#define SPLIT(regex) \
    "{`type`:`Split`,`pattern`:{`Regex`:`" regex "`},`behavior`:`Isolated`,`invert`:false}"
#define BYTE_LEVEL(prefix) \
    "{`type`:`ByteLevel`,`add_prefix_space`:" prefix ",`trim_offsets`:true,`use_regex`:false}"
#define BYTES        BYTE_LEVEL("false")
#define SPACED_BYTES BYTE_LEVEL("true")
#define MARKED       "{`type`:`Metaspace`,`replacement`:`▁`,`prepend_scheme`:`first`,`split`:false}"
#define NFC          "{`type`:`NFC`}"
// An id that no token has: the file's own count for nothing.
#define ADDED(content, single, left, right, normal)                              \
    "{`id`:99,`content`:`" content "`,`single_word`:" #single ",`lstrip`:" #left \
    ",`rstrip`:" #right ",`normalized`:" #normal ",`special`:false}"

enum { IDS_MAX = 8 };
static const struct pitfall {
    const char *what, *text;                                // no text: only decoded
    const char *normalizer, *pre_tokenizer, *added, *flags; // null: none
    const char *vocab, *merges, *decoder;                   // no decoder: Fuse
    int32_t ids[IDS_MAX];
    size_t n;
    const char *decoded; // null: the text
} pitfalls[] = {
    {"$ matches before every newline", .text = "a  \n  b", .pre_tokenizer = SPLIT("\\\\s+$"),
     .vocab = "` `:0,`\\n`:1,`a`:2,`b`:3,`  `:4,` \\n`:5,`\\n `:6",
     .merges = "[` `,`\\n`],[`\\n`,` `],[` `,` `]", .ids = {2, 4, 6, 0, 3}, .n = 5},
    {"\\s has no U+180E", .text = "!\u180E", .pre_tokenizer = SPLIT("\\\\s+"),
     .vocab = "`!`:0,`\u180E`:1,`!\u180E`:2", .merges = "[`!`,`\u180E`]", .ids = {2}, .n = 1},
    {"\\s has U+3000 and U+0085", .text = "!\u3000!\302\205", .pre_tokenizer = SPLIT("\\\\s+"),
     .vocab = "`!`:0,`\u3000`:1,`\302\205`:2,`!\u3000`:3,`!\302\205`:4",
     .merges = "[`!`,`\u3000`],[`!`,`\302\205`]", .ids = {0, 1, 0, 2}, .n = 4},
    {"(?i:'s) has the long s", .text = "a'ſ",
     .pre_tokenizer = SPLIT("(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
     .vocab = "`a`:0,`'`:1,`ſ`:2,`a'`:3,`'ſ`:4", .merges = "[`a`,`'`],[`'`,`ſ`]", .ids = {0, 4},
     .n = 2},
    {"'[sS] has it not", .text = "a'ſ", .pre_tokenizer = SPLIT("'[sS]"),
     .vocab = "`a`:0,`'`:1,`ſ`:2,`a'`:3,`'ſ`:4", .merges = "[`a`,`'`],[`'`,`ſ`]", .ids = {3, 2},
     .n = 2},
    {"a letter of Unicode 16", .text = "!\u1C89", .pre_tokenizer = SPLIT("\\\\p{L}+"),
     .vocab = "`!`:0,`\u1C89`:1,`!\u1C89`:2", .merges = "[`!`,`\u1C89`]", .ids = {0, 1}, .n = 2},
    {"a digit of Unicode 17", .text = "!\U00011DE0",
     .pre_tokenizer = "{`type`:`Digits`,`individual_digits`:false}",
     .vocab = "`!`:0,`\U00011DE0`:1,`!\U00011DE0`:2", .merges = "[`!`,`\U00011DE0`]", .ids = {0, 1},
     .n = 2},
    {"NFC composes by Unicode 9", .text = "\U00011935\U00011930e\u0301", .normalizer = NFC,
     .vocab = "`\U00011935`:0,`\U00011930`:1,`e`:2,`\u0301`:3,`é`:4,`\U00011938`:5",
     .ids = {0, 1, 4}, .n = 3, .decoded = "\U00011935\U00011930é"},
    {"NFC leaves U+11A7 behind a syllable", .text = "\uAC00\u11A7", .normalizer = NFC,
     .vocab = "`\uAC00`:0,`\u11A7`:1", .ids = {0, 1}, .n = 2},
    {"tokens that are not normalized come first, on the text as it is", .text = "éxe\u0301",
     .normalizer = NFC,
     .added =
         ADDED("e\u0301", false, false, false, false) "," ADDED("é", false, false, false, true),
     .vocab = "`x`:0,`é`:1,`e`:2,`\u0301`:3", .ids = {1, 0, 4}, .n = 3},
    {"the content of a normalized one is normalized too", .text = "xé", .normalizer = NFC,
     .added = ADDED("xe\u0301", false, false, false, true), .vocab = "`x`:0,`é`:1,`e`:2,`\u0301`:3",
     .ids = {4}, .n = 1},
    {"the leftmost of them, and the longest there", .text = "aabc",
     .added = ADDED("ab", false, false, false, false) "," ADDED(
         "aab", false, false, false, false) "," ADDED("abc", false, false, false, false),
     .vocab = "`a`:0,`b`:1,`c`:2", .ids = {4, 2}, .n = 2},
    {"a refused single word takes its text with it", .text = "xaba",
     .added = ADDED("ab", true, false, false, false) "," ADDED("ba", false, false, false, false),
     .vocab = "`x`:0,`a`:1,`b`:2", .ids = {0, 1, 2, 1}, .n = 4},
    {"a word by itself is one", .text = "x ab x",
     .added = ADDED("ab", true, false, false, false) "," ADDED("ba", false, false, false, false),
     .vocab = "`x`:0,`a`:1,`b`:2,` `:3", .ids = {0, 3, 4, 3, 0}, .n = 5},
    {"lstrip and rstrip take the spaces", .text = "x  <s>  x",
     .added = ADDED("<s>", false, true, true, false), .vocab = "`x`:0,` `:1", .ids = {0, 2, 0},
     .n = 3, .decoded = "x<s>x"},
    {"their ids count for nothing", .text = "<a><b>x<c>",
     .added = ADDED("<a>", false, false, false, false) "," ADDED(
         "<b>", false, false, false, false) "," ADDED("<c>", false, false, false, false),
     .vocab = "`x`:0,`<b>`:1", .ids = {2, 1, 0, 3}, .n = 4},
    {"add_prefix_space is for every gap that begins with no space", .text = "x<s>x<s> x",
     .pre_tokenizer = SPACED_BYTES, .added = ADDED("<s>", false, false, false, false),
     .vocab = "`x`:0,`Ġ`:1,`Ġx`:2", .merges = "[`Ġ`,`x`]", .decoder = BYTES, .ids = {2, 3, 2, 3, 2},
     .n = 5, .decoded = " x<s> x<s> x"},
    {"and no other white space is one", .text = "\nx", .pre_tokenizer = SPACED_BYTES,
     .vocab = "`x`:0,`Ġ`:1,`Ċ`:2,`ĠĊ`:3", .merges = "[`Ġ`,`Ċ`]", .decoder = BYTES, .ids = {3, 0},
     .n = 2, .decoded = " \nx"},
    {"Prepend is for every gap, before a space too", .text = "x<s>x<s> x",
     .normalizer = "{`type`:`Sequence`,`normalizers`:[{`type`:`Prepend`,`prepend`:`▁`},{`type`:`"
                   "Replace`,`pattern`:{`String`:` `},`content`:`▁`}]}",
     .added = ADDED("<s>", false, false, false, false), .vocab = "`x`:0,`▁`:1,`▁x`:2,`▁▁`:3",
     .merges = "[`▁`,`x`],[`▁`,`▁`]", .ids = {2, 4, 2, 4, 1, 2}, .n = 6,
     .decoded = "▁x<s>▁x<s>▁▁x"},
    {"Metaspace's is for the beginning alone", .text = "x<s>x<s> x", .pre_tokenizer = MARKED,
     .added = ADDED("<s>", false, false, false, false), .vocab = "`x`:0,`▁`:1,`▁x`:2",
     .merges = "[`▁`,`x`]", .ids = {2, 3, 0, 3, 2}, .n = 5, .decoded = "▁x<s>x<s>▁x"},
    {"unless its mark stands there", .text = "▁x", .pre_tokenizer = MARKED,
     .vocab = "`x`:0,`▁`:1,`▁x`:2", .merges = "[`▁`,`x`]", .ids = {2}, .n = 1},
    {"or a space, which becomes one", .text = " x", .pre_tokenizer = MARKED,
     .vocab = "`x`:0,`▁`:1,`▁▁`:2", .merges = "[`▁`,`▁`]", .ids = {1, 0}, .n = 2, .decoded = "▁x"},
    {"a lookahead sees its piece alone", .text = "a  <s>b  b",
     .pre_tokenizer = SPLIT("\\\\s+(?!\\\\S)|\\\\s+"),
     .added = ADDED("<s>", false, false, false, false), .vocab = "`a`:0,`b`:1,` `:2,`  `:3,` b`:4",
     .merges = "[` `,` `],[` `,`b`]", .ids = {0, 3, 5, 1, 2, 2, 1}, .n = 7},
    {"and so does one behind another split", .text = "a  1",
     .pre_tokenizer = "{`type`:`Sequence`,`pretokenizers`:[{`type`:`Split`,`pattern`:{`Regex`:`"
                      "\\\\p{N}`},`behavior`:`Isolated`,`invert`:false},{`type`:`Split`,`pattern`:{"
                      "`Regex`:`\\\\s+(?!\\\\S)|\\\\s+`},`behavior`:`Isolated`,`invert`:false}]}",
     .vocab = "`a`:0,`1`:1,` `:2,`  `:3", .merges = "[` `,` `]", .ids = {0, 3, 1}, .n = 3},
    {"the lowest rank first", .text = "abc", .vocab = "`a`:0,`b`:1,`c`:2,`ab`:3,`bc`:4",
     .merges = "[`b`,`c`],[`a`,`b`]", .ids = {0, 4}, .n = 2},
    {"of one rank the leftmost", .text = "aaa", .vocab = "`a`:0,`aa`:1", .merges = "[`a`,`a`]",
     .ids = {1, 0}, .n = 2},
    {"a merge of a rank that is lower comes before what it makes", .text = "aaab",
     .vocab = "`a`:0,`b`:1,`aa`:2,`ab`:3", .merges = "[`a`,`b`],[`a`,`a`]", .ids = {2, 3}, .n = 2},
    {"ignore_merges: the whole piece", .text = "abc", .flags = ",`ignore_merges`:true",
     .vocab = "`a`:0,`b`:1,`c`:2,`ab`:3,`abc`:4", .merges = "[`a`,`b`]", .ids = {4}, .n = 1},
    {"without it merges alone", .text = "abc", .vocab = "`a`:0,`b`:1,`c`:2,`ab`:3,`abc`:4",
     .merges = "[`a`,`b`]", .ids = {3, 2}, .n = 2},
    {"ignore_merges is for whole pieces", .text = "abcd", .pre_tokenizer = SPLIT("d"),
     .flags = ",`ignore_merges`:true", .vocab = "`a`:0,`b`:1,`c`:2,`d`:3,`ab`:4,`abc`:5",
     .merges = "[`a`,`b`]", .ids = {5, 3}, .n = 2},
    {"what has no token vanishes", .text = "axb", .vocab = "`a`:0,`b`:1,`ab`:2",
     .merges = "[`a`,`b`]", .ids = {2}, .n = 1, .decoded = "ab"},
    {"with bytes too", .text = "é!", .pre_tokenizer = BYTES, .vocab = "`!`:0,`Ã`:1",
     .decoder = BYTES, .ids = {1, 0}, .n = 2, .decoded = "\uFFFD!"},
    {"unknown characters, fused", .text = "xyaz", .flags = ",`unk_token`:`?`,`fuse_unk`:true",
     .vocab = "`a`:0,`?`:1", .ids = {1, 0, 1}, .n = 3, .decoded = "?a?"},
    {"unknown characters, each", .text = "xyaz", .flags = ",`unk_token`:`?`,`fuse_unk`:false",
     .vocab = "`a`:0,`?`:1", .ids = {1, 1, 0, 1}, .n = 4, .decoded = "??a?"},
    {"bytes where a character is unknown", .text = "é", .flags = ",`byte_fallback`:true",
     .vocab = "`a`:0,`<0xC3>`:1,`<0xA9>`:2",
     .decoder = "{`type`:`Sequence`,`decoders`:[{`type`:`ByteFallback`},{`type`:`Fuse`}]}",
     .ids = {1, 2}, .n = 2},
    {"all of its bytes or none", .text = "éa",
     .flags = ",`byte_fallback`:true,`unk_token`:`?`,`fuse_unk`:true",
     .vocab = "`a`:0,`<0xC3>`:1,`?`:2", .ids = {2, 0}, .n = 2, .decoded = "?a"},
    {"a byte that is no character: one U+FFFD each", .text = "அx", .flags = ",`byte_fallback`:true",
     .vocab = "`<0xE0>`:0,`<0xAE>`:1,`<0x85>`:2,`x`:3",
     .decoder = "{`type`:`Sequence`,`decoders`:[{`type`:`ByteFallback`},{`type`:`Fuse`}]}",
     .ids = {0, 1, 2, 3}, .n = 4},
    {"an added é is the byte E9", .text = "é", .pre_tokenizer = BYTES,
     .added = ADDED("é", false, false, false, false), .vocab = "`x`:0", .decoder = BYTES,
     .ids = {1}, .n = 1, .decoded = "\uFFFD"},
    {"Strip takes one space of the beginning", .text = "  x",
     .normalizer = "{`type`:`Replace`,`pattern`:{`String`:` `},`content`:`▁`}",
     .vocab = "`x`:0,`▁`:1",
     .decoder = "{`type`:`Sequence`,`decoders`:[{`type`:`Replace`,`pattern`:{`String`:`▁`},`"
                "content`:` `},{`type`:`Fuse`},{`type`:`Strip`,`content`:` `,`start`:1,`stop`:0}]}",
     .ids = {1, 1, 0}, .n = 3, .decoded = " x"},
    {"ByteFallback: one U+FFFD for each byte of no character",
     .vocab = "`<0xE0>`:0,`<0xAE>`:1,`x`:2",
     .decoder = "{`type`:`Sequence`,`decoders`:[{`type`:`ByteFallback`},{`type`:`Fuse`}]}",
     .ids = {0, 1, 2, 0}, .n = 4, .decoded = "\uFFFD\uFFFDx\uFFFD"},
    {"ByteLevel: one U+FFFD for bytes that begin one character", .vocab = "`à`:0,`\u00AE`:1,`x`:2",
     .decoder = BYTES, .ids = {0, 1, 2, 0, 2, 1}, .n = 6, .decoded = "\uFFFDx\uFFFDx\uFFFD"},
    {"ByteLevel joins bytes of several tokens", .vocab = "`Ã`:0,`\u00A9`:1,`x`:2", .decoder = BYTES,
     .ids = {0, 1, 2}, .n = 3, .decoded = "éx"},
    {"an added é behind a byte completes nothing", .added = ADDED("é", false, false, false, false),
     .vocab = "`Ã`:0", .decoder = BYTES, .ids = {0, 1}, .n = 2, .decoded = "\uFFFD\uFFFD"},
};

static const char *text_or(const char *s, const char *absent)
{
    return s ? s : absent;
}

static void print_file(const struct pitfall *p, struct buf *out)
{
    buf_printf(
        out,
        "{`version`:`1.0`,`truncation`:null,`padding`:null,`added_tokens`:[%s],`normalizer`:%s,"
        "`pre_tokenizer`:%s,`post_processor`:null,`decoder`:%s,"
        "`model`:{`type`:`BPE`%s,`vocab`:{%s},`merges`:[%s]}}",
        text_or(p->added, ""), text_or(p->normalizer, "null"), text_or(p->pre_tokenizer, "null"),
        text_or(p->decoder, "{`type`:`Fuse`}"), text_or(p->flags, ""), p->vocab,
        text_or(p->merges, ""));
    for (char *c = out->data; *c; c++)
        *c = *c == '`' ? '"' : *c;
}

static void check_ids(const struct pitfall *p, const struct tokenizer *t)
{
    struct tokenizer_work *w = tokenizer_work_new(t);
    struct token_ids ids = {0};
    struct buf got = {0};
    struct err e = {0};
    if (tokenizer_encode(t, w, p->text, strlen(p->text), false, &ids, &e))
        fail_msg("%s: %s", p->what, e.text);
    for (size_t i = 0; i < ids.n; i++)
        buf_printf(&got, " %d", ids.data[i]);
    if (ids.n != p->n || memcmp(ids.data, p->ids, p->n * sizeof *p->ids) != 0)
        fail_msg("%s: the ids are%s", p->what, buf_str(&got));
    buf_clear(&got);
    token_ids_clear(&ids);
    tokenizer_work_free(w);
}

static void every_pitfall(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pitfalls / sizeof *pitfalls; i++) {
        const struct pitfall *p = &pitfalls[i];
        struct buf file = {0}, text = {0};
        struct tokenizer *t;
        struct err e = {0};
        print_file(p, &file);
        if (tokenizer_parse(&t, file.data, file.len, NULL, 0, &e))
            fail_msg("%s: %s", p->what, e.text);
        if (p->text)
            check_ids(p, t);
        tokenizer_decode(t, p->ids, p->n, false, &text);
        if (strcmp(buf_str(&text), text_or(p->decoded, p->text)) != 0)
            fail_msg("%s: decodes to '%s'", p->what, buf_str(&text));
        tokenizer_close(t);
        buf_clear(&file);
        buf_clear(&text);
    }
}

// Of 2²⁰ spaces in a row, at which Oniguruma gives up or panics, merges make half as many tokens.
static void a_million_spaces(void **state)
{
    enum { SPACES = 1 << 20 };
    static const struct pitfall p = {.pre_tokenizer = SPLIT("\\\\s+(?!\\\\S)|\\\\s+"),
                                     .vocab = "` `:0,`  `:1",
                                     .merges = "[` `,` `]"};
    struct buf file = {0}, text = {0};
    struct token_ids ids = {0};
    struct tokenizer *t;
    struct err e = {0};
    (void)state;
    print_file(&p, &file);
    assert_int_equal(tokenizer_parse(&t, file.data, file.len, NULL, 0, &e), 0);
    struct tokenizer_work *w = tokenizer_work_new(t);
    for (int i = 0; i < SPACES; i++)
        buf_putc(&text, ' ');
    if (tokenizer_encode(t, w, text.data, text.len, false, &ids, &e))
        fail_msg("%s", e.text);
    assert_int_equal(ids.n, SPACES / 2);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.data[i], 1);
    tokenizer_work_free(w);
    tokenizer_close(t);
    token_ids_clear(&ids);
    buf_clear(&file);
    buf_clear(&text);
}

// Each makes 256 of one: together they would make 4 GB of the token.
static void decoders_that_multiply_a_token_take_bounded_memory(void **state)
{
    enum { TIMES = 256, DECODERS = 4 };
    struct buf decoder = {0}, file = {0}, text = {0};
    static const int32_t id = 0;
    struct tokenizer *t;
    struct err e = {0};
    (void)state;
    buf_puts(&decoder, "{`type`:`Sequence`,`decoders`:[");
    for (int i = 0; i < DECODERS; i++) {
        buf_printf(&decoder, "%s{`type`:`Replace`,`pattern`:{`String`:`a`},`content`:`",
                   i ? "," : "");
        for (int k = 0; k < TIMES; k++)
            buf_putc(&decoder, 'a');
        buf_puts(&decoder, "`}");
    }
    buf_puts(&decoder, "]}");
    print_file(&(struct pitfall){.vocab = "`a`:0", .decoder = buf_str(&decoder)}, &file);
    if (tokenizer_parse(&t, file.data, file.len, NULL, 0, &e))
        fail_msg("%s", e.text);
    tokenizer_decode(t, &id, 1, false, &text);
    assert_true(text.len >= TIMES * TIMES);
    assert_true(text.len <= DECODERS * (TOKENIZER_MAX_GROWTH + TIMES));
    tokenizer_close(t);
    buf_clear(&decoder);
    buf_clear(&file);
    buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pitfall),
        cmocka_unit_test(a_million_spaces),
        cmocka_unit_test(decoders_that_multiply_a_token_take_bounded_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
