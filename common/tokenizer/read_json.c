// SPDX-License-Identifier: Apache-2.0
// tokenizer.json, read into a pipeline. See pipeline.h.
//
// What is not in these tables is refused with its name and place, since a part that is passed over would
// give other ids in silence: an unknown key, an unknown type, a flag that asks for what is not done.
#include <stdio.h>

#include "common/base/json.h"
#include "common/tokenizer/read_model.h"
#include "common/tokenizer/tokenizer.h"

enum { KEYS_MAX = 8 };

struct part {
    const char *type;
    const char *keys[KEYS_MAX]; // besides "type"
    int (*read)(struct pipeline *p, const struct json *o, struct err *e);
};
static int read_part(struct pipeline *p, const struct json *o, const struct part *parts, size_t n,
                     struct err *e);
#define COUNT(a) (sizeof(a) / sizeof *(a))

// ---- typed access ------------------------------------------------------------------------------
static bool is_null(const struct json *v)
{
    return !v || v->type == JSON_NULL;
}

static int keep_text(struct pipeline *p, const char *key, const char *s, struct literal *out,
                     struct err *e)
{
    size_t n = strlen(s);
    if (n > TOKENIZER_MAX_LITERAL)
        return err_set(e, ERR_LIMIT, "%s: a text of more than %d bytes", key,
                       TOKENIZER_MAX_LITERAL);
    *out = (struct literal){arena_strdup(&p->arena, s), n};
    return 0;
}

static int get_literal(struct pipeline *p, const struct json *o, const char *key,
                       struct literal *out, struct err *e)
{
    const char *s;
    int rc = json_get_str(o, key, &s, e);
    return rc ? rc : keep_text(p, key, s, out, e);
}

// {"String": …} or {"Regex": …}: one of them is set.
static int get_pattern(const struct json *o, const char **string, const char **regex, struct err *e)
{
    const struct json *pattern;
    *string = *regex = NULL;
    int rc = json_get_object(o, "pattern", &pattern, e);
    if (rc)
        return rc;
    bool is_regex = json_get(pattern, "Regex") != NULL;
    rc = json_get_str(pattern, is_regex ? "Regex" : "String", is_regex ? regex : string, e);
    if (!rc && pattern->count != 1)
        rc = err_set(e, ERR_UNSUPPORTED, "it has other keys beside String or Regex");
    if (!rc && !*(is_regex ? *regex : *string))
        rc = err_set(e, ERR_UNSUPPORTED, "the empty text, which is everywhere");
    if (rc)
        err_wrap(e, "pattern");
    return rc;
}

static int get_string_pattern(struct pipeline *p, const struct json *o, struct literal *out,
                              struct err *e)
{
    const char *string, *regex;
    int rc = get_pattern(o, &string, &regex, e);
    if (!rc && regex)
        rc = err_set(e, ERR_UNSUPPORTED, "pattern: Replace by Regex is not read, only by String");
    return rc ? rc : keep_text(p, "pattern", string, out, e);
}

// ---- parts -------------------------------------------------------------------------------------
static int read_sequence(struct pipeline *p, const struct json *o, const char *key,
                         const struct part *parts, size_t n, struct err *e)
{
    const struct json *list;
    int rc = json_get_array(o, key, &list, e), i = 0;
    for (const struct json *v = rc ? NULL : list->first; v && !rc; v = v->next, i++) {
        rc = read_part(p, v, parts, n, e);
        if (rc)
            err_wrap(e, "%s[%d]", key, i);
    }
    return rc;
}

static int read_part(struct pipeline *p, const struct json *o, const struct part *parts, size_t n,
                     struct err *e)
{
    const char *type;
    char names[200] = "";
    if (o->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "is not an object");
    int rc = json_get_str(o, "type", &type, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(parts[i].type, type) == 0) {
            rc = read_no_other_keys(o, "type", parts[i].keys, e);
            if (!rc)
                rc = parts[i].read(p, o, e);
            if (rc)
                err_wrap(e, "%s", type);
            return rc;
        }
        size_t have = strlen(names);
        snprintf(names + have, sizeof names - have, "%s%s", i ? ", " : "", parts[i].type);
    }
    return err_set(e, ERR_UNSUPPORTED, "type %.100s is not read: %s are", type, names);
}

static int refuse_more(int n, struct err *e)
{
    return n < PIPELINE_STEPS
               ? 0
               : err_set(e, ERR_LIMIT, "more than %d of them in a row", PIPELINE_STEPS);
}

// ---- normalizers -------------------------------------------------------------------------------
static int add_normalizer(struct pipeline *p, struct normalizer n, struct err *e)
{
    int rc = refuse_more(p->nnormalizers, e);
    if (!rc)
        p->normalizers[p->nnormalizers++] = n;
    return rc;
}

static int read_nfc(struct pipeline *p, const struct json *o, struct err *e)
{
    (void)o;
    return add_normalizer(p, (struct normalizer){.kind = NORMALIZE_NFC}, e);
}

static int read_replace(struct pipeline *p, const struct json *o, struct err *e)
{
    struct normalizer n = {.kind = NORMALIZE_REPLACE};
    int rc = get_string_pattern(p, o, &n.pattern, e);
    if (!rc)
        rc = get_literal(p, o, "content", &n.content, e);
    return rc ? rc : add_normalizer(p, n, e);
}

static int read_prepend(struct pipeline *p, const struct json *o, struct err *e)
{
    struct normalizer n = {.kind = NORMALIZE_PREPEND};
    int rc = get_literal(p, o, "prepend", &n.content, e);
    return rc ? rc : add_normalizer(p, n, e);
}

static int read_normalizers(struct pipeline *p, const struct json *o, struct err *e);
static const struct part normalizers[] = {
    {"NFC", {NULL}, read_nfc},
    {"Replace", {"pattern", "content"}, read_replace},
    {"Prepend", {"prepend"}, read_prepend},
    {"Sequence", {"normalizers"}, read_normalizers},
};
static int read_normalizers(struct pipeline *p, const struct json *o, struct err *e)
{
    return read_sequence(p, o, "normalizers", normalizers, COUNT(normalizers), e);
}

// ---- pre-tokenizers ----------------------------------------------------------------------------
static int add_pre_tokenizer(struct pipeline *p, struct pre_tokenizer t, struct err *e)
{
    int rc = refuse_more(p->npre_tokenizers, e);
    if (!rc && p->bpe.byte_level)
        rc = err_set(e, ERR_UNSUPPORTED, "stands behind ByteLevel, which is read as the last one");
    if (!rc)
        p->pre_tokenizers[p->npre_tokenizers++] = t;
    return rc;
}

static int get_word(const struct json *o, const char *key, const char *const *words, int *out,
                    struct err *e)
{
    const char *s;
    int rc = json_get_str(o, key, &s, e);
    for (*out = 0; !rc && words[*out]; ++*out)
        if (strcmp(words[*out], s) == 0)
            return 0;
    return rc ? rc : err_set(e, ERR_UNSUPPORTED, "'%s' is '%.100s', which is not read", key, s);
}

static int read_split(struct pipeline *p, const struct json *o, struct err *e)
{
    static const char *const behaviors[] = {[SPLIT_REMOVED] = "Removed",
                                            [SPLIT_ISOLATED] = "Isolated",
                                            [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                            [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
                                            [SPLIT_CONTIGUOUS] = "Contiguous",
                                            NULL};
    struct pre_tokenizer t = {.kind = PRE_SPLIT};
    const char *string, *regex;
    int behavior = 0, rc = get_pattern(o, &string, &regex, e);
    if (!rc)
        rc = get_word(o, "behavior", behaviors, &behavior, e);
    if (!rc)
        rc = read_bool(o, "invert", &t.invert, e);
    if (rc)
        return rc;
    t.behavior = (enum split_behavior)behavior;
    if (string)
        rc = keep_text(p, "String", string, &t.string, e);
    else if (!(t.known = known_pattern(regex)) && !class_pattern_parse(&t.class, regex))
        rc = regex_pattern_new(&t.regex, regex, e);
    if (rc)
        err_wrap(e, "pattern");
    else
        rc = add_pre_tokenizer(p, t, e);
    if (rc) {
        class_pattern_clear(&t.class);
        regex_pattern_free(t.regex);
    }
    return rc;
}

static int read_digits(struct pipeline *p, const struct json *o, struct err *e)
{
    bool each = false;
    int rc = read_bool(o, "individual_digits", &each, e);
    struct pre_tokenizer t = {.kind = PRE_DIGITS,
                              .behavior = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return rc ? rc : add_pre_tokenizer(p, t, e);
}

static int read_metaspace(struct pipeline *p, const struct json *o, struct err *e)
{
    static const char *const schemes[] = {
        [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always", NULL};
    struct pre_tokenizer t = {.kind = PRE_METASPACE, .behavior = SPLIT_MERGED_WITH_NEXT};
    const char *replacement;
    int scheme = 0, rc = json_get_str(o, "replacement", &replacement, e);
    if (!rc && strcmp(replacement, "▁") != 0)
        rc = err_set(e, ERR_UNSUPPORTED, "'replacement' is '%.20s', and only ▁ is read",
                     replacement);
    if (!rc)
        rc = get_word(o, "prepend_scheme", schemes, &scheme, e);
    if (!rc)
        rc = read_bool(o, "split", &t.split, e);
    if (!rc && scheme == PREPEND_FIRST && p->nnormalizers)
        rc = err_set(e, ERR_UNSUPPORTED, "prepend_scheme 'first' is not read behind a normalizer");
    t.prepend = scheme;
    t.string = (struct literal){"▁", sizeof "▁" - 1};
    return rc ? rc : add_pre_tokenizer(p, t, e);
}

static int read_byte_level(struct pipeline *p, const struct json *o, struct err *e)
{
    struct pre_tokenizer t = {.kind = PRE_BYTE_LEVEL, .behavior = SPLIT_ISOLATED};
    bool by_pattern, ignored; // trim_offsets is about offsets, which nobody asks for
    int rc = read_bool(o, "add_prefix_space", &t.prefix_space, e);
    if (!rc)
        rc = read_bool(o, "trim_offsets", &ignored, e);
    if (!rc)
        rc = read_bool_or(o, "use_regex", true, &by_pattern, e);
    if (!rc) {
        t.known = by_pattern ? byte_level_pattern() : NULL;
        rc = add_pre_tokenizer(p, t, e);
    }
    p->bpe.byte_level = !rc;
    return rc;
}

static int read_pre_tokenizers(struct pipeline *p, const struct json *o, struct err *e);
static const struct part pre_tokenizers[] = {
    {"Split", {"pattern", "behavior", "invert"}, read_split},
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, read_byte_level},
    {"Digits", {"individual_digits"}, read_digits},
    {"Metaspace", {"replacement", "prepend_scheme", "split"}, read_metaspace},
    {"Sequence", {"pretokenizers"}, read_pre_tokenizers},
};
static int read_pre_tokenizers(struct pipeline *p, const struct json *o, struct err *e)
{
    return read_sequence(p, o, "pretokenizers", pre_tokenizers, COUNT(pre_tokenizers), e);
}

// ---- decoders ----------------------------------------------------------------------------------
static int add_decoder(struct pipeline *p, struct decoder d, struct err *e)
{
    int rc = refuse_more(p->ndecoders, e);
    if (!rc)
        p->decoders[p->ndecoders++] = d;
    return rc;
}

static int read_byte_level_decoder(struct pipeline *p, const struct json *o, struct err *e)
{
    (void)o; // its flags are the pre-tokenizer's
    return add_decoder(p, (struct decoder){.kind = DECODE_BYTE_LEVEL}, e);
}

static int read_replace_decoder(struct pipeline *p, const struct json *o, struct err *e)
{
    struct decoder d = {.kind = DECODE_REPLACE};
    int rc = get_string_pattern(p, o, &d.pattern, e);
    if (!rc)
        rc = get_literal(p, o, "content", &d.content, e);
    return rc ? rc : add_decoder(p, d, e);
}

static int read_byte_fallback(struct pipeline *p, const struct json *o, struct err *e)
{
    (void)o;
    return add_decoder(p, (struct decoder){.kind = DECODE_BYTE_FALLBACK}, e);
}

static int read_fuse(struct pipeline *p, const struct json *o, struct err *e)
{
    (void)o;
    return add_decoder(p, (struct decoder){.kind = DECODE_FUSE}, e);
}

static int read_strip(struct pipeline *p, const struct json *o, struct err *e)
{
    struct decoder d = {.kind = DECODE_STRIP};
    int64_t start = 0, stop = 0;
    size_t n = 0;
    int rc = get_literal(p, o, "content", &d.content, e);
    if (!rc)
        rc = json_get_int(o, "start", &start, e);
    if (!rc)
        rc = json_get_int(o, "stop", &stop, e);
    if (!rc && d.content.n)
        char_at(d.content.s, &n);
    if (!rc && (!n || n != d.content.n))
        rc = err_set(e, ERR_DATA, "'content' is not one character");
    if (!rc && (start < 0 || start > INT32_MAX || stop))
        rc = err_set(e, ERR_UNSUPPORTED, "only start is read, and stop: 0");
    d.start = (int)start;
    return rc ? rc : add_decoder(p, d, e);
}

static int read_decoders(struct pipeline *p, const struct json *o, struct err *e);
static const struct part decoders[] = {
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, read_byte_level_decoder},
    {"Replace", {"pattern", "content"}, read_replace_decoder},
    {"ByteFallback", {NULL}, read_byte_fallback},
    {"Fuse", {NULL}, read_fuse},
    {"Strip", {"content", "start", "stop"}, read_strip},
    {"Sequence", {"decoders"}, read_decoders},
};
static int read_decoders(struct pipeline *p, const struct json *o, struct err *e)
{
    return read_sequence(p, o, "decoders", decoders, COUNT(decoders), e);
}

// ---- the post-processor ------------------------------------------------------------------------
static int read_no_offsets(struct pipeline *p, const struct json *o, struct err *e)
{
    (void)p, (void)o, (void)e; // ByteLevel: about offsets
    return 0;
}

// The ids of a special token that a template names.
static int put_special(const struct pipeline *p, const struct json *specials,
                       const struct json *piece, struct token_ids *to, struct err *e)
{
    const char *name;
    const struct json *special, *ids;
    int rc = json_get_str(piece, "id", &name, e);
    if (!rc)
        rc = json_get_object(specials, name, &special, e);
    if (!rc)
        rc = json_get_array(special, "ids", &ids, e);
    for (const struct json *id = rc ? NULL : ids->first; id && !rc; id = id->next)
        if (id->type != JSON_NUMBER || !id->is_int || id->integer < 0 ||
            id->integer >= (int64_t)p->nids)
            rc = err_set(e, ERR_DATA, "special_tokens: '%.100s' has an id that no token has", name);
        else if (p->before.n + p->behind.n >= TOKENIZER_MAX_AROUND)
            rc = err_set(e, ERR_LIMIT, "more than %d ids around a text", TOKENIZER_MAX_AROUND);
        else
            token_ids_put(to, (int32_t)id->integer);
    return rc;
}

static int read_template(struct pipeline *p, const struct json *o, struct err *e)
{
    const struct json *single, *specials, *piece;
    const char *name;
    int texts = 0, i = 0, rc = json_get_array(o, "single", &single, e);
    if (!rc)
        rc = json_get_object(o, "special_tokens", &specials, e);
    if (!rc && p->has_template)
        rc = err_set(e, ERR_UNSUPPORTED, "a second one");
    p->has_template = true;
    for (const struct json *v = rc ? NULL : single->first; v && !rc; v = v->next, i++) {
        if (v->type != JSON_OBJECT || v->count != 1) {
            rc = err_set(e, ERR_DATA, "neither SpecialToken nor Sequence");
        } else if (json_get(v, "SpecialToken")) {
            rc = json_get_object(v, "SpecialToken", &piece, e);
            if (!rc)
                rc = put_special(p, specials, piece, texts ? &p->behind : &p->before, e);
        } else {
            rc = json_get_object(v, "Sequence", &piece, e);
            if (!rc)
                rc = json_get_str(piece, "id", &name, e);
            if (!rc && (strcmp(name, "A") != 0 || texts++))
                rc = err_set(e, ERR_UNSUPPORTED, "a second text: one Sequence, A, is read");
        }
        if (rc)
            err_wrap(e, "single[%d]", i);
    }
    if (!rc && !texts)
        rc = err_set(e, ERR_UNSUPPORTED, "single: it holds no Sequence, the text itself");
    return rc;
}

static int read_post_processors(struct pipeline *p, const struct json *o, struct err *e);
static const struct part post_processors[] = {
    {"ByteLevel", {"add_prefix_space", "trim_offsets", "use_regex"}, read_no_offsets},
    {"TemplateProcessing", {"single", "pair", "special_tokens"}, read_template},
    {"Sequence", {"processors"}, read_post_processors},
};
static int read_post_processors(struct pipeline *p, const struct json *o, struct err *e)
{
    return read_sequence(p, o, "processors", post_processors, COUNT(post_processors), e);
}

// ---- the whole ---------------------------------------------------------------------------------
static int refuse_unless_null(const struct json *top, const char *key, const char *why,
                              struct err *e)
{
    return is_null(json_get(top, key)) ? 0 : err_set(e, ERR_UNSUPPORTED, "%s: %s", key, why);
}

static int read_section(struct pipeline *p, const struct json *top, const char *key,
                        const struct part *parts, size_t n, struct err *e)
{
    const struct json *v = json_get(top, key);
    int rc = is_null(v) ? 0 : read_part(p, v, parts, n, e);
    if (rc)
        err_wrap(e, "%s", key);
    return rc;
}

static int read_top(struct pipeline *p, const struct json *top, struct err *e)
{
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const struct json *model;
    const char *version;
    if (top->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "is not an object");
    int rc = read_no_other_keys(top, "type", keys, e);
    rc = rc ? rc : json_get_str(top, "version", &version, e);
    rc = rc ? rc : json_get_object(top, "model", &model, e);
    if (rc)
        return rc;
    if (strcmp(version, "1.0") != 0)
        return err_set(e, ERR_UNSUPPORTED, "version: %.20s is not read, only 1.0", version);
    rc = refuse_unless_null(top, "truncation", "texts are never cut", e);
    rc = rc ? rc : refuse_unless_null(top, "padding", "texts are never filled up", e);
    rc = rc ? rc : read_section(p, top, "normalizer", normalizers, COUNT(normalizers), e);
    rc = rc ? rc : read_section(p, top, "pre_tokenizer", pre_tokenizers, COUNT(pre_tokenizers), e);
    rc = rc ? rc : read_section(p, top, "decoder", decoders, COUNT(decoders), e);
    rc = rc ? rc : read_model(p, model, e);
    rc = rc ? rc : read_added_tokens(p, json_get(top, "added_tokens"), e);
    rc = rc ? rc
            : read_section(p, top, "post_processor", post_processors, COUNT(post_processors), e);
    if (!rc && !p->ndecoders)
        rc = err_set(e, ERR_UNSUPPORTED, "decoder: there is none, and tokens would have no text");
    return rc;
}

int pipeline_read(struct pipeline *p, const char *json, size_t bytes, struct err *e)
{
    struct arena tree;
    struct json *top;
    char_classes_make();
    arena_init(&tree);
    int rc = json_parse(&tree, json, bytes, &top, e);
    if (!rc)
        rc = read_top(p, top, e);
    arena_clear(&tree);
    return rc;
}
