// SPDX-License-Identifier: Apache-2.0
// What the rest of weft asks of a model. See model_facts.h.
#include "common/language/model_facts.h"

#include <string.h>

// ---- which names stand in the text -------------------------------------------------------------

static bool has_name(const struct expr *e, const char *name)
{
    if (e->kind == EXPR_PATH && !e->has_dims && e->name && strcmp(e->name, name) == 0)
        return true;
    bool any = false;
    for (int i = 0; i < e->n && !any; i++)
        any = has_name(e->arg[i], name);
    return any;
}

static bool block_names(const struct stmt *s, const char *name)
{
    bool any = false;
    for (; s && !any; s = s->next) {
        for (int i = 0; i < s->n && !any; i++)
            any = has_name(s->value[i], name);
        any = any || block_names(s->body, name) || block_names(s->otherwise, name);
    }
    return any;
}

static bool program_names(const struct model_program *p, const char *name)
{
    bool any = block_names(p->syntax->body, name);
    for (int i = 0; i < p->syntax->nlets && !any; i++)
        any = block_names(p->syntax->let[i].body, name);
    return any;
}

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
    return program_names(p, "tokens") || program_names(p, "targets") ||
           program_names(p, "positions");
}

void model_facts_find(const struct model_sizes *s, struct model_facts *out)
{
    const struct model_program *p = s->program;
    *out = (struct model_facts){
        .tokens = model_reads_tokens(p),
        .images = program_names(p, "images"),
        .labels = program_names(p, "labels"),
        .seq = model_sizes_whole(s, "seq", 0),
        .vocab = model_sizes_whole(s, "vocab", 0),
        .features = model_sizes_whole(s, "inputs", model_sizes_whole(s, "embed", 0)),
        .classes = model_sizes_whole(s, "classes", 0),
    };
    out->samples = out->tokens && binds_logits(p->syntax->body);
}
