// SPDX-License-Identifier: Apache-2.0
// weft completion bash, or zsh: a function for the shell, written from the tables of verbs and flags. Jobs
// and workers are asked of the coordinator, within a second.
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/plain.h"
#include "coordinator/cli/verbs.h"

// The shell command whose output are the words that an argument may become; null: none.
static const char *find_words(const struct verb *v)
{
    if (strncmp(v->args, "JOB.yaml", 8) == 0 || strstr(v->args, "FILE"))
        return "compgen -f -- \"$cur\"";
    if (strstr(v->args, "DIR"))
        return "compgen -W 'ls verify' -- \"$cur\"; compgen -d -- \"$cur\"";
    if (strncmp(v->args, "JOB", 3) == 0)
        return "compgen -W \"$(timeout 1 weft jobs --all 2>/dev/null | awk 'NR>1{print $1, $2}')\" "
               "-- \"$cur\"";
    if (strncmp(v->args, "HOST", 4) == 0)
        return "compgen -W \"$(timeout 1 weft workers 2>/dev/null | awk 'NR>1{print $2}')\" -- "
               "\"$cur\"";
    return strcmp(v->args, "bash|zsh") == 0 ? "compgen -W 'bash zsh' -- \"$cur\"" : NULL;
}

static void print_bash(const struct verb *verbs, int n)
{
    plain_puts(stdout, "_weft() {\n"
                       "    local cur=${COMP_WORDS[COMP_CWORD]} IFS=$' \\t\\n' words= flags=\n"
                       "    if [ \"$COMP_CWORD\" = 1 ]; then\n");
    plain_printf(stdout, "        COMPREPLY=($(compgen -W 'help");
    for (int i = 0; i < n; i++)
        plain_printf(stdout, " %s", verbs[i].name);
    plain_puts(stdout, "' -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < n; i++) {
        const struct verb *o = &verbs[i];
        const char *words = find_words(o);
        plain_printf(stdout, "    %s) flags='", o->name);
        for (int f = 0; f < FLAGS; f++)
            if (o->flags & FLAG_BIT(f))
                plain_printf(stdout, "%s ", f == FLAG_SET ? "-s" : flag_rows[f].name);
        plain_printf(stdout, "--help'; [[ $cur == -* ]] || words=$(%s) ;;\n", words ? words : ":");
    }
    plain_puts(stdout,
               "    esac\n"
               "    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
               "    else COMPREPLY=($words); fi\n"
               "}\n"
               "complete -o filenames -F _weft weft\n");
}

// A text inside '…[…]:…' of zsh's _arguments and _describe.
static void put_zsh(struct buf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            buf_puts(out, "'\\''");
        else
            buf_printf(out, "%s%c", strchr("[]:\\", *text) ? "\\" : "", *text);
}

// What completes a verb's arguments, as _arguments has it.
static const char *find_zsh_words(const struct verb *v)
{
    if (strncmp(v->args, "JOB.yaml", 8) == 0 || strstr(v->args, "FILE") || strstr(v->args, "DIR"))
        return "*:file:_files";
    if (strncmp(v->args, "JOB", 3) == 0)
        return "*:job:_weft_ask jobs --all";
    if (strncmp(v->args, "HOST", 4) == 0)
        return "*:host:_weft_ask workers";
    return strcmp(v->args, "bash|zsh") == 0 ? "1:shell:(bash zsh)" : "*:file:_files";
}

static void put_zsh_verb(struct buf *out, const struct verb *v)
{
    buf_printf(out, "    %s) _arguments", v->name);
    for (int f = 0; f < FLAGS; f++) {
        if (!(v->flags & FLAG_BIT(f)))
            continue;
        const struct flag_row *r = &flag_rows[f];
        const char *of[] = {r->brief, r->name};
        for (int k = 0; k < 2; k++) {
            if (!*of[k])
                continue;
            buf_printf(out, " '*%s[", of[k]);
            put_zsh(out, r->doc);
            buf_putc(out, ']');
            if (*r->value) {
                buf_putc(out, ':');
                put_zsh(out, r->value);
                buf_puts(out, ":_files");
            }
            buf_putc(out, '\'');
        }
    }
    buf_printf(out, " '%s' ;;\n", find_zsh_words(v));
}

// As a file of $fpath, or evaluated.
static void print_zsh(const struct verb *verbs, int n)
{
    struct buf out = {0};
    buf_puts(&out, "#compdef weft\n"
                   "_weft_ask() {\n"
                   "    local -a found\n"
                   "    found=(${(f)\"$(timeout 1 weft $@ 2>/dev/null | awk 'NR>1{print $1; print "
                   "$2}')\"})\n"
                   "    compadd -a found\n"
                   "}\n"
                   "_weft() {\n"
                   "    local -a verbs\n"
                   "    verbs=('help:what a verb does'");
    for (int i = 0; i < n; i++) {
        buf_printf(&out, " '%s:", verbs[i].name);
        put_zsh(&out, verbs[i].doc);
        buf_putc(&out, '\'');
    }
    buf_puts(&out, ")\n"
                   "    if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n"
                   "    shift words; (( CURRENT-- ))\n"
                   "    case $words[1] in\n"
                   "    help) _describe verb verbs ;;\n");
    for (int i = 0; i < n; i++)
        put_zsh_verb(&out, &verbs[i]);
    buf_puts(&out,
             "    esac\n"
             "}\n"
             "if [[ $funcstack[1] == _weft ]]; then _weft \"$@\"; else compdef _weft weft; fi\n");
    plain_put(stdout, buf_str(&out), out.len);
    buf_clear(&out);
}

int print_completion(const struct verb *v, const struct args *a, const struct verb *verbs, int n)
{
    if (strcmp(a->pos[0], "bash") != 0 && strcmp(a->pos[0], "zsh") != 0)
        return usage(v, "bash and zsh are the shells it knows");
    (strcmp(a->pos[0], "bash") == 0 ? print_bash : print_zsh)(verbs, n);
    return CLIENT_OK;
}
