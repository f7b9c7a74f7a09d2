// SPDX-License-Identifier: Apache-2.0
// weft model: the programs that come with weft, and what a program of one's own is.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "common/explain/plan_report.h"
#include "common/language/model_program.h"
#include "common/plan/model_check.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/verbs.h"

static const char STARTER[] = "starter"; // the program that `new` gives

// Prints what is wrong, if anything is, and clears it. Returns the exit code.
static int print_why(struct buf *why, int code)
{
    int rc = why->len ? code : CLIENT_OK;
    plain_printf(stderr, "%s", buf_str(why));
    buf_clear(why);
    return rc;
}

// ---- list --------------------------------------------------------------------------------------

static int list_programs(const struct verb *v, const struct args *a, struct buf *out)
{
    struct json_out w;
    struct table t;
    struct buf why = {0};
    char params[WORD_MAX];
    (void)v;
    json_print_start(&w, out, true);
    json_array(&w, "programs");
    table_init(&t, "PROGRAM >PARAMETERS IS");
    for (const struct model_text *text = model_texts; text->name && !why.len; text++) {
        struct arena arena = {0};
        struct model_checked c;
        if (!model_look(text->name, NULL, 0, &arena, &c, &why)) {
            table_add(&t, "%s", text->name);
            table_add(&t, "%s", word_rate((double)c.params, params));
            table_add(&t, "%s", c.title);
            json_object(&w, NULL);
            json_str(&w, "name", text->name);
            json_str(&w, "doc", c.title);
            json_count(&w, "param_count", c.params);
            json_end(&w);
        }
        arena_clear(&arena);
    }
    json_end(&w);
    json_print_end(&w);
    if (!a->json)
        buf_reset(out);
    if (!a->json)
        table_print(&t, out);
    else
        arena_clear(&t.arena);
    return print_why(&why, CLIENT_FAILED);
}

// ---- show, new ---------------------------------------------------------------------------------

static const struct model_text *find_text(const char *name)
{
    const struct model_text *t = model_text_find(name);
    struct buf all = {0};
    if (t)
        return t;
    for (t = model_texts; t->name; t++)
        buf_printf(&all, "%s%s", t == model_texts ? "" : ", ", t->name);
    plain_error("weft model: no program '%s' comes with weft: it has %s", name, buf_str(&all));
    buf_clear(&all);
    return NULL;
}

static int show_program(const struct verb *v, const struct args *a, struct buf *out)
{
    const struct model_text *t = find_text(a->pos[1]);
    struct json_out w;
    (void)v;
    if (!t)
        return CLIENT_USAGE;
    if (!a->json) {
        buf_puts(out, t->text);
        return CLIENT_OK;
    }
    json_print_start(&w, out, true);
    json_str(&w, "name", t->name);
    json_str(&w, "text", t->text);
    json_print_end(&w);
    return CLIENT_OK;
}

static int new_program(const struct verb *v, const struct args *a, struct buf *out)
{
    const struct model_text *t = model_text_find(STARTER);
    const char *name = a->pos[1], *text = t->text;
    char path[4096];
    size_t n = strlen(name), left = strlen(text);
    bool whole = n > 6 && strcmp(name + n - 6, ".model") == 0;
    if (!*name || *name == '-' || name[n - 1] == '/' ||
        snprintf(path, sizeof path, "%s%s", name, whole ? "" : ".model") >= (int)sizeof path)
        return usage(v, "new makes a file: new NAME");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        plain_error("weft model: cannot make %s: %s", path, strerror(errno));
        return CLIENT_USAGE;
    }
    ssize_t done = 1;
    for (; left && done > 0; text += done, left -= (size_t)done)
        done = write(fd, text, left);
    if (close(fd) || left) {
        plain_error("weft model: cannot write %s: %s", path, strerror(errno));
        return CLIENT_FAILED;
    }
    if (a->json) {
        struct json_out w;
        json_print_start(&w, out, true);
        json_str(&w, "file", path);
        json_print_end(&w);
    } else {
        buf_printf(out,
                   "%s: a model to change; weft model check %s shows what it is, and a job says "
                   "model: {program: %s%s}\n",
                   path, path, strchr(path, '/') ? "" : "./", path);
    }
    return CLIENT_OK;
}

// ---- check -------------------------------------------------------------------------------------

static void print_checked(const struct model_checked *c, struct buf *out)
{
    char word[WORD_MAX];
    struct table t;
    buf_printf(out, "%s%s%s\n", c->job.model.program, *c->title ? ": " : "", c->title);
    if (c->nnamed) {
        table_init(&t, ">LINE NAME DIMENSIONS");
        for (int i = 0; i < c->nnamed; i++) {
            table_add(&t, "%d", c->named[i].line);
            table_add(&t, "%s", c->named[i].name);
            table_add(&t, "%s", c->named[i].dims);
        }
        table_print(&t, out);
        buf_putc(out, '\n');
    }
    buf_printf(out, "%s parameters (%lld); a step of one sample takes %.4g FLOPs\n",
               word_rate((double)c->params, word), (long long)c->params, c->flops);
    report_params(c->g, out);
    buf_putc(out, '\n');
    table_init(&t, "RULE AXES >PARAMETERS >TENSORS");
    for (int i = 0; i < c->ncuts; i++) {
        table_add(&t, "%s", c->cuts[i].dim);
        table_add(&t, "%s", c->cuts[i].axes);
        table_add(&t, "%.3g %%", 100 * c->cuts[i].params);
        table_add(&t, "%d", c->cuts[i].tensors);
    }
    table_print(&t, out);
    if (c->most)
        buf_printf(out, "no rule cuts %.3g %% of the parameters; the largest of them is %s\n",
                   100 * c->uncut, c->most);
    for (int i = 0; i < c->nunlike; i++)
        buf_printf(out, "warning: line %d: no rule cuts %s = %s: `like %s` would, as it cuts %s\n",
                   c->unlike[i].size->at.line, c->unlike[i].size->name, c->unlike[i].size->written,
                   c->unlike[i].base->name, c->unlike[i].base->name);
    for (int i = 0; i < c->nunread; i++)
        buf_printf(out, "warning: nothing reads %s: its gradient is 0\n", c->unread[i]);
    for (int i = 0; i < c->nunused; i++)
        buf_printf(out, "warning: line %d: nothing reads the size %s\n", c->unused[i]->at.line,
                   c->unused[i]->name);
    for (int i = 0; i < c->nreread; i++)
        buf_printf(
            out,
            "warning: line %d: one turn of the repeat reads %s again, after line %d: another "
            "path makes another parameter\n",
            c->reread[i].line, c->reread[i].param, c->reread[i].first_line);
}

static void print_checked_json(const struct model_checked *c, struct buf *out)
{
    struct json_out w;
    json_print_start(&w, out, true);
    json_str(&w, "program", c->job.model.program);
    json_str(&w, "doc", c->title);
    json_count(&w, "param_count", c->params);
    json_double(&w, "flops_per_sample", c->flops);
    json_array(&w, "values");
    for (int i = 0; i < c->nnamed; i++) {
        json_object(&w, NULL);
        json_count(&w, "line", c->named[i].line);
        json_str(&w, "name", c->named[i].name);
        json_str(&w, "dims", c->named[i].dims);
        json_end(&w);
    }
    json_end(&w);
    json_array(&w, "params");
    for (int v = 0; v < c->g->nvalues; v++) {
        const struct value *p = &c->g->values[v];
        if (p->kind != VALUE_PARAM || p->alias >= 0)
            continue;
        json_object(&w, NULL);
        json_str(&w, "name", p->name);
        json_array(&w, "dims");
        for (int d = 0; d < p->shape.n; d++)
            json_str(&w, NULL, dims_name(c->g->dims, p->dims[d]));
        json_end(&w);
        json_array(&w, "shape");
        for (int d = 0; d < p->shape.n; d++)
            json_count(&w, NULL, p->shape.dim[d]);
        json_end(&w);
        json_end(&w);
    }
    json_end(&w);
    json_array(&w, "rules");
    for (int i = 0; i < c->ncuts; i++) {
        json_object(&w, NULL);
        json_str(&w, "dim", c->cuts[i].dim);
        json_str(&w, "axes", c->cuts[i].axes);
        json_double(&w, "share", c->cuts[i].params);
        json_count(&w, "tensors", c->cuts[i].tensors);
        json_end(&w);
    }
    json_end(&w);
    json_double(&w, "uncut", c->uncut);
    json_str(&w, "uncut_most", c->most);
    json_array(&w, "unlike");
    for (int i = 0; i < c->nunlike; i++) {
        json_object(&w, NULL);
        json_count(&w, "line", c->unlike[i].size->at.line);
        json_str(&w, "size", c->unlike[i].size->name);
        json_str(&w, "like", c->unlike[i].base->name);
        json_end(&w);
    }
    json_end(&w);
    json_print_end(&w);
}

static int check_program(const struct verb *v, const struct args *a, struct buf *out)
{
    struct arena arena = {0};
    struct model_checked c;
    struct buf why = {0};
    (void)v;
    if (!model_check(a->pos[1], a->set, a->nset, &arena, &c, &why))
        (a->json ? print_checked_json : print_checked)(&c, out);
    arena_clear(&arena);
    return print_why(&why, CLIENT_USAGE);
}

// ---- the verb ----------------------------------------------------------------------------------

static const struct {
    const char *name;
    int npos; // the act counted in
    bool set; // takes -s
    int (*run)(const struct verb *v, const struct args *a, struct buf *out);
} acts[] = {
    {"list", 1, false, list_programs},
    {"show", 2, false, show_program},
    {"check", 2, true, check_program},
    {"new", 2, false, new_program},
};

enum { ACTS = sizeof acts / sizeof *acts };

int verb_model(const struct verb *v, const struct args *a)
{
    const char *known[ACTS];
    struct buf out = {0};
    for (int i = 0; i < ACTS; i++) {
        known[i] = acts[i].name;
        if (strcmp(acts[i].name, a->pos[0]) != 0)
            continue;
        if (a->npos != acts[i].npos || (a->nset && !acts[i].set))
            return usage(v, "list, show NAME, check FILE with any -s SIZE=VALUE, or new NAME");
        int rc = acts[i].run(v, a, &out);
        put_out(&out);
        return rc;
    }
    return refuse_word(v, a->pos[0], known, ACTS);
}
