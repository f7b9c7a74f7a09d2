// SPDX-License-Identifier: Apache-2.0
// What the rest of weft asks of a model. See model_facts.h.
#include "common/language/model_facts.h"

#include <string.h>

// ---- which names stand in the text -------------------------------------------------------------

static bool names(const struct expr *e, const char *name)
{
    return e->kind == EXPR_PATH && !e->has_dims && e->name && strcmp(e->name, name) == 0;
}

static bool calls(const struct expr *e, const char *function)
{
    return e->kind == EXPR_CALL && strcmp(e->name, function) == 0;
}

typedef bool says_fn(const struct expr *e, const char *what);

static bool expr_says(const struct expr *e, says_fn *says, const char *what)
{
    bool any = says(e, what);
    for (int i = 0; i < e->n && !any; i++)
        any = expr_says(e->arg[i], says, what);
    return any;
}

static bool block_says(const struct stmt *s, says_fn *says, const char *what)
{
    bool any = false;
    for (; s && !any; s = s->next) {
        for (int i = 0; i < s->n && !any; i++)
            any = expr_says(s->value[i], says, what);
        any = any || block_says(s->body, says, what) || block_says(s->otherwise, says, what);
    }
    return any;
}

static bool program_says(const struct model_program *p, says_fn *says, const char *what)
{
    bool any = block_says(p->syntax->body, says, what);
    for (int i = 0; i < p->syntax->nlets && !any; i++)
        any = block_says(p->syntax->let[i].body, says, what);
    return any;
}

// ---- sizes that nothing reads ------------------------------------------------------------------

static bool path_reads(const struct path *p, const char *size);

static bool expr_reads(const struct expr *e, const char *size)
{
    if (!e)
        return false;
    bool named = (e->kind == EXPR_PATH || e->kind == EXPR_BY) && e->name;
    bool any = (named && strcmp(e->name, size) == 0) || path_reads(&e->path, size) ||
               expr_reads(e->init, size);
    for (int i = 0; i < e->n && !any; i++)
        any = expr_reads(e->arg[i], size);
    for (int d = 0; d < e->ndims && !any; d++) {
        const struct written_dim *w = &e->dims[d];
        any = (w->name && strcmp(w->name, size) == 0) || (w->as && strcmp(w->as, size) == 0) ||
              expr_reads(w->size, size);
    }
    return any;
}

static bool path_reads(const struct path *p, const char *size)
{
    bool any = false;
    for (int i = 0; i < p->n && !any; i++)
        any = expr_reads(p->part[i].number, size);
    return any;
}

static bool block_reads(const struct stmt *s, const char *size)
{
    bool any = false;
    for (; s && !any; s = s->next) {
        for (int i = 0; i < s->n && !any; i++)
            any = expr_reads(s->value[i], size);
        for (int i = 0; i < s->nlike && !any; i++)
            any = strcmp(s->like[i], size) == 0;
        any = any || path_reads(&s->path, size) || block_reads(s->body, size) ||
              block_reads(s->otherwise, size);
    }
    return any;
}

// What weft reads by a size's name where the text has what wants it.
static bool weft_reads(const struct model_program *p, const char *size)
{
    static const struct {
        const char *size, *data, *function;
    } reads[] = {{"inputs", "images", NULL},
                 {"embed", "images", NULL},
                 {"classes", "labels", NULL},
                 {"theta", NULL, "rotary"},
                 {"dropout", NULL, "dropout"}};
    bool of_tokens = strcmp(size, "seq") == 0 || strcmp(size, "vocab") == 0;
    bool any = of_tokens && model_reads_tokens(p);
    for (size_t i = 0; i < sizeof reads / sizeof *reads && !any; i++) {
        if (strcmp(reads[i].size, size) != 0)
            continue;
        any = reads[i].data ? program_says(p, names, reads[i].data)
                            : program_says(p, calls, reads[i].function);
    }
    return any;
}

bool model_size_is_read(const struct model_program *p, const char *size)
{
    const struct syntax *s = p->syntax;
    bool any = block_reads(s->body, size) || weft_reads(p, size);
    for (int i = 0; i < s->nlets && !any; i++)
        any = block_reads(s->let[i].body, size);
    for (int i = 0; i < s->nsizes && !any; i++) {
        const struct written_size *w = &s->size[i];
        any = expr_reads(w->value, size) || expr_reads(w->low, size) || expr_reads(w->high, size) ||
              expr_reads(w->padded, size) || (w->like && strcmp(w->like, size) == 0) ||
              (w->divides && strcmp(w->divides, size) == 0);
    }
    return any;
}

// ---- facts -------------------------------------------------------------------------------------

static bool binds_logits(const struct stmt *s)
{
    bool any = false;
    for (; s && !any; s = s->next)
        any = (s->kind == STMT_BIND && strcmp(s->name[0], "logits") == 0) ||
              (s->kind != STMT_REPEAT && (binds_logits(s->body) || binds_logits(s->otherwise)));
    return any;
}

bool model_reads_tokens(const struct model_program *p)
{
    return program_says(p, names, "tokens") || program_says(p, names, "targets") ||
           program_says(p, names, "positions");
}

void model_facts_find(const struct model_sizes *s, struct model_facts *out)
{
    const struct model_program *p = s->program;
    *out = (struct model_facts){
        .tokens = model_reads_tokens(p),
        .images = program_says(p, names, "images"),
        .labels = program_says(p, names, "labels"),
        .seq = model_sizes_whole(s, "seq", 0),
        .vocab = model_sizes_whole(s, "vocab", 0),
        .features = model_sizes_whole(s, "inputs", model_sizes_whole(s, "embed", 0)),
        .classes = model_sizes_whole(s, "classes", 0),
    };
    out->samples = out->tokens && binds_logits(p->syntax->body);
}
