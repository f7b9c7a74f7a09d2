// SPDX-License-Identifier: Apache-2.0
// Pages for man(1), `weft help VERB --man`, written from the tables of verbs and flags as help is; `make
// man` and `make install` ask for each.
#include <ctype.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/plain.h"
#include "coordinator/cli/verbs.h"

// The text as man's language has it: no character of it is a request or an escape.
static void put_text(struct buf *out, const char *text)
{
    for (const char *at = text; *at; at++) {
        bool begins = at == text || at[-1] == '\n';
        if (begins && (*at == '.' || *at == '\''))
            buf_puts(out, "\\&");
        if (*at == '\\')
            buf_puts(out, "\\e");
        else if (*at == '-')
            buf_puts(out, "\\-");
        else
            buf_putc(out, *at);
    }
}

// Lines that begin with blanks are a table and stay as they are; the others are filled.
static void put_lines(struct buf *out, const char *text)
{
    bool table = false;
    while (*text) {
        size_t n = strcspn(text, "\n");
        struct buf line = {0};
        buf_append(&line, text, n);
        if ((*text == ' ') != table)
            buf_puts(out, table ? ".fi\n" : ".nf\n");
        table = *text == ' ';
        put_text(out, buf_str(&line));
        buf_putc(out, '\n');
        buf_clear(&line);
        text += n + (text[n] == '\n');
    }
    buf_puts(out, table ? ".fi\n" : "");
}

static void put_head(struct buf *out, const char *verb, const char *doc)
{
    buf_puts(out, ".TH WEFT");
    for (const char *at = verb; *at; at++)
        buf_putc(out, (char)toupper((unsigned char)*at));
    buf_printf(out, " 1 \"\" \"weft %s\"\n.SH NAME\n", WEFT_VERSION);
    buf_puts(out, "weft");
    put_text(out, verb);
    buf_puts(out, " \\- ");
    put_text(out, doc);
    buf_puts(out, "\n.SH SYNOPSIS\n");
}

void print_verb_manual(const struct verb *v)
{
    struct buf out = {0}, name = {0};
    buf_printf(&name, "-%s", v->name);
    put_head(&out, buf_str(&name), v->doc);
    buf_printf(&out, ".B weft %s\n", v->name);
    for (int i = 0; i < FLAGS; i++) {
        const struct flag_row *r = &flag_rows[i];
        if (!(v->flags & FLAG_BIT(i)))
            continue;
        buf_puts(&out, "[");
        put_text(&out, r->name);
        buf_puts(&out, *r->value ? " " : "");
        put_text(&out, r->value);
        buf_puts(&out, "]\n");
    }
    put_text(&out, v->args);
    buf_puts(&out, *v->args ? "\n" : "");
    if (v->more) {
        buf_puts(&out, ".SH DESCRIPTION\n");
        put_lines(&out, v->more);
    }
    buf_puts(&out, v->flags ? ".SH OPTIONS\n" : "");
    for (int i = 0; i < FLAGS; i++) {
        const struct flag_row *r = &flag_rows[i];
        if (!(v->flags & FLAG_BIT(i)))
            continue;
        buf_puts(&out, ".TP\n.B ");
        put_text(&out, r->brief);
        buf_puts(&out, *r->brief ? ", " : "");
        put_text(&out, r->name);
        buf_puts(&out, *r->value ? " " : "");
        put_text(&out, r->value);
        buf_putc(&out, '\n');
        put_text(&out, r->doc);
        buf_putc(&out, '\n');
    }
    buf_puts(&out, ".SH SEE ALSO\n.BR weft (1)\n");
    plain_put(stdout, buf_str(&out), out.len);
    buf_clear(&out);
    buf_clear(&name);
}

void print_manual(const struct verb *verbs, int n, const char *exits)
{
    struct buf out = {0};
    put_head(&out, "", "distributed training as a service");
    buf_puts(&out, ".B weft\nVERB [ARGUMENTS] [FLAGS]\n.SH DESCRIPTION\n"
                   "Each verb has a page of its own: weft\\-plan(1) is that of weft plan.\n");
    for (int i = 0; i < n; i++) {
        buf_printf(&out, ".TP\n.B %s\n", verbs[i].name);
        put_text(&out, verbs[i].doc);
        buf_putc(&out, '\n');
    }
    buf_puts(&out, ".SH EXIT STATUS\n");
    put_lines(&out, exits);
    buf_puts(&out, ".SH SEE ALSO\n");
    for (int i = 0; i < n; i++)
        buf_printf(&out, ".BR weft\\-%s (1)%s\n", verbs[i].name, i + 1 < n ? "," : "");
    plain_put(stdout, buf_str(&out), out.len);
    buf_clear(&out);
}
