// SPDX-License-Identifier: Apache-2.0
// Makes a tree of libyaml's events (job_tree.h). This is the only file that sees yaml.h.
//
// Bounds hold while reading, not after: depth and node count are checked event by event, and
// anchors, aliases and tags never enter the tree. If one node is wrong (a repeated key, an alias)
// it is reported and reading continues; if the text is wrong, reading ends.
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "common/base/map.h"
#include "common/base/utf8.h"
#include "common/job/job_tree.h"
#include "common/job/text.h"

struct yaml_reader {
    yaml_parser_t parser;
    const struct tree_source *source;
    struct tree_errors *errors;
    struct tree_node *root;
    struct level {
        struct tree_node *node;
        struct tree_node *key; // of a map: the key whose value comes next; null: a key comes next
        struct map seen;       // of a map: its keys
    } stack[JOB_MAX_DEPTH];
    int depth, nodes;
    bool done, failed;
};

static int mark_line(yaml_mark_t m)
{
    return m.line < INT_MAX ? (int)m.line + 1 : INT_MAX;
}

static int mark_column(yaml_mark_t m)
{
    return m.column < INT_MAX ? (int)m.column + 1 : INT_MAX;
}

// The keys that lead to the node being read.
static const char *find_path(const struct yaml_reader *r)
{
    struct buf path = {0};
    for (int i = 0; i < r->depth; i++)
        if (r->stack[i].key)
            buf_printf(&path, "%s%s", path.len ? "." : "", r->stack[i].key->text);
    return buf_keep(&path, r->errors->arena);
}

__attribute__((format(printf, 3, 4))) static void stop_reading(struct yaml_reader *r,
                                                               yaml_mark_t at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(r->errors->arena, fmt, ap);
    va_end(ap);
    tree_error_at(r->errors, r->source, mark_line(at), mark_column(at), "%s", text);
    r->failed = true;
}

static struct tree_node *new_node(struct yaml_reader *r, enum tree_kind kind,
                                  const yaml_event_t *ev)
{
    if (++r->nodes > JOB_MAX_NODES) {
        stop_reading(r, ev->start_mark, "more than %d keys and values", JOB_MAX_NODES);
        return NULL;
    }
    struct tree_node *n = arena_new(r->errors->arena, struct tree_node);
    n->kind = kind;
    n->source = r->source;
    n->line = mark_line(ev->start_mark);
    n->column = mark_column(ev->start_mark);
    n->text = "";
    return n;
}

// Anchors and tags would make a short text mean a long or a different one.
static void refuse_anchor_or_tag(struct yaml_reader *r, struct tree_node *n, const void *anchor,
                                 const void *tag)
{
    if (anchor)
        tree_error(r->errors, n, find_path(r),
                   "anchors (&) are not part of job files: write the value out");
    if (tag)
        tree_error(r->errors, n, find_path(r), "tags (!) are not part of job files");
}

static struct tree_node *new_scalar(struct yaml_reader *r, const yaml_event_t *ev)
{
    struct tree_node *n = new_node(r, TREE_SCALAR, ev);
    if (!n)
        return NULL;
    const char *s = (const char *)ev->data.scalar.value, *path = NULL;
    size_t len = ev->data.scalar.length, of_character;
    for (size_t i = 0; i < len; i += of_character) {
        of_character = utf8_length(s + i, len - i);
        POST(of_character); // the text was UTF-8 and so are its escapes
        uint32_t c = utf8_decode(s + i, of_character);
        if (!text_is_control(c))
            continue;
        path = path ? path : find_path(r);
        if ((c != '\n' && c != '\t') || strcmp(path, "model.text") != 0) {
            bool prompt = strcmp(path, "eval.sample.prompt") == 0; // reads escapes of its own
            tree_error(r->errors, n, path,
                       "a line break or control character (U+%04X) in a value%s", c,
                       prompt ? ": write an escape, such as \\n, in single quotes" : "");
            n->kind = TREE_BROKEN;
            return n;
        }
    }
    n->text = arena_strdup(r->errors->arena, s);
    n->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    refuse_anchor_or_tag(r, n, ev->data.scalar.anchor, ev->data.scalar.tag);
    return n;
}

static void take_key(struct yaml_reader *r, struct level *l, struct tree_node *key)
{
    if (key->kind != TREE_SCALAR) {
        if (key->kind != TREE_BROKEN)
            tree_error(r->errors, key, "", "a key must be a word, not %s", tree_kind_text(key));
        key->kind = TREE_BROKEN;
        l->key = key;
        return;
    }
    l->key = key;
    const struct tree_node *before = map_put(&l->seen, key->text, key);
    if (before) {
        tree_error(r->errors, key, find_path(r), "the key is given twice, before in line %d",
                   before->line);
        key->kind = TREE_BROKEN;
    }
}

static void append_member(struct tree_node *parent, struct tree_node *n)
{
    if (parent->last)
        parent->last->next = n;
    else
        parent->first = n;
    parent->last = n;
    parent->count++;
}

// Puts a finished node where it belongs: root, list item, key or value.
static void attach_node(struct yaml_reader *r, struct tree_node *n)
{
    if (r->depth == 0) {
        r->root = n;
        return;
    }
    struct level *l = &r->stack[r->depth - 1];
    if (l->node->kind == TREE_LIST) {
        append_member(l->node, n);
    } else if (!l->key) {
        take_key(r, l, n);
    } else {
        n->key = l->key->text;
        n->key_line = l->key->line;
        n->key_column = l->key->column;
        if (l->key->kind == TREE_SCALAR)
            append_member(l->node, n);
        l->key = NULL;
    }
}

static void on_scalar(struct yaml_reader *r, const yaml_event_t *ev)
{
    struct tree_node *n = new_scalar(r, ev);
    if (n)
        attach_node(r, n);
}

static void on_alias(struct yaml_reader *r, const yaml_event_t *ev)
{
    struct tree_node *n = new_node(r, TREE_BROKEN, ev);
    if (!n)
        return;
    tree_error(r->errors, n, find_path(r),
               "aliases (*%.40s) are not part of job files: write the value out",
               (const char *)ev->data.alias.anchor);
    attach_node(r, n);
}

static void open_level(struct yaml_reader *r, enum tree_kind kind, const yaml_event_t *ev,
                       const void *anchor, const void *tag)
{
    if (r->depth == JOB_MAX_DEPTH) {
        stop_reading(r, ev->start_mark, "nested deeper than %d", JOB_MAX_DEPTH);
        return;
    }
    struct tree_node *n = new_node(r, kind, ev);
    if (!n)
        return;
    refuse_anchor_or_tag(r, n, anchor, tag);
    r->stack[r->depth++] = (struct level){.node = n};
}

static void on_map(struct yaml_reader *r, const yaml_event_t *ev)
{
    open_level(r, TREE_MAP, ev, ev->data.mapping_start.anchor, ev->data.mapping_start.tag);
}

static void on_list(struct yaml_reader *r, const yaml_event_t *ev)
{
    open_level(r, TREE_LIST, ev, ev->data.sequence_start.anchor, ev->data.sequence_start.tag);
}

static void on_close(struct yaml_reader *r, const yaml_event_t *ev)
{
    (void)ev;
    struct level *l = &r->stack[--r->depth];
    map_clear(&l->seen);
    attach_node(r, l->node);
}

static void on_document(struct yaml_reader *r, const yaml_event_t *ev)
{
    if (r->root)
        stop_reading(r, ev->start_mark, "a second document (---): a job file has one");
}

static void on_end(struct yaml_reader *r, const yaml_event_t *ev)
{
    (void)ev;
    r->done = true;
}

static void (*const handlers[])(struct yaml_reader *, const yaml_event_t *) = {
    [YAML_STREAM_END_EVENT] = on_end,      [YAML_DOCUMENT_START_EVENT] = on_document,
    [YAML_ALIAS_EVENT] = on_alias,         [YAML_SCALAR_EVENT] = on_scalar,
    [YAML_SEQUENCE_START_EVENT] = on_list, [YAML_SEQUENCE_END_EVENT] = on_close,
    [YAML_MAPPING_START_EVENT] = on_map,   [YAML_MAPPING_END_EVENT] = on_close,
};

static void read_events(struct yaml_reader *r)
{
    while (!r->done && !r->failed) {
        yaml_event_t ev;
        if (!yaml_parser_parse(&r->parser, &ev)) {
            const yaml_parser_t *p = &r->parser;
            yaml_mark_t at = p->problem_mark;
            const char *context = p->context ? p->context : "";
            char begins[40] = "";
            if (*context && p->context_mark.line < at.line)
                snprintf(begins, sizeof begins, " that begins in line %d",
                         mark_line(p->context_mark));
            bool mark = strstr(context, "alias") || strstr(context, "anchor");
            stop_reading(r, at, "not YAML: %s%s%s%s%s", p->problem ? p->problem : "unreadable",
                         *context ? " " : "", context, begins,
                         mark ? ": a text that begins with * or & stands in quotes" : "");
            return;
        }
        size_t type = (size_t)ev.type;
        if (type < sizeof handlers / sizeof *handlers && handlers[type])
            handlers[type](r, &ev);
        yaml_event_delete(&ev);
    }
}

// A document without content: a plain null, or a map without keys.
static struct tree_node *new_empty_node(struct yaml_reader *r, enum tree_kind kind)
{
    struct tree_node *n = arena_new(r->errors->arena, struct tree_node);
    *n = (struct tree_node){
        .kind = kind, .source = r->source, .line = 1, .column = 1, .text = "", .plain = true};
    return n;
}

struct tree_node *tree_read_value(const struct tree_source *source, const char *text, size_t len,
                                  struct tree_errors *errors)
{
    struct yaml_reader r = {.source = source, .errors = errors};
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { // a byte order mark means nothing
        text += 3;
        len -= 3;
    }
    if (!text_check(source, text, len, errors))
        return NULL;
    if (!yaml_parser_initialize(&r.parser))
        err_bug(__FILE__, __LINE__, "out of memory for the YAML parser");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    read_events(&r);
    while (r.depth > 0)
        map_clear(&r.stack[--r.depth].seen);
    yaml_parser_delete(&r.parser);
    if (r.failed)
        return NULL;
    return r.root ? r.root : new_empty_node(&r, TREE_SCALAR);
}

struct tree_node *tree_read(const struct tree_source *source, const char *text, size_t len,
                            struct tree_errors *errors)
{
    struct tree_node *root = tree_read_value(source, text, len, errors);
    struct yaml_reader r = {.source = source, .errors = errors};
    return root && tree_is_null(root) ? new_empty_node(&r, TREE_MAP) : root;
}
