// SPDX-License-Identifier: Apache-2.0
// What the rest of weft asks of a model. See model_facts.h.
#include "common/model/language/model_facts.h"

#include <string.h>

#include "common/model/language/reckon.h"

// ---- which names stand in the text -------------------------------------------------------------

static bool expr_names(const struct expr *e, const char *name)
{
    if (e->kind == EXPR_PATH && !e->has_dims && e->name && strcmp(e->name, name) == 0)
        return true;
    bool any = false;
    for (int i = 0; i < e->n && !any; i++)
        any = expr_names(e->arg[i], name);
    return any;
}

static bool block_names(const struct stmt *s, const char *name)
{
    bool any = false;
    for (; s && !any; s = s->next) {
        for (int i = 0; i < s->n && !any; i++)
            any = expr_names(s->value[i], name);
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

// ---- layers ------------------------------------------------------------------------------------

static bool count_layers(struct reckoning *r, const struct stmt *s, int64_t *layers);

static bool count_repeat(struct reckoning *r, const struct stmt *s, int64_t *layers)
{
    struct number n;
    if (!reckon(r, s->value[0], &n))
        return false;
    double count = n.list ? n.n : n.value;
    if (!number_is_whole(count) || count < 0)
        return !model_error_at(r->errs, s->at, "repeat takes a whole number from 0, not %.6g",
                               count);
    if ((double)*layers + count > MODEL_MAX_LAYERS)
        return !model_error_at(r->errs, s->at, "%.6g layers: 0 to %d of a model would do",
                               (double)*layers + count, MODEL_MAX_LAYERS);
    *layers += (int64_t)count;
    return true;
}

static bool has_layers(const struct stmt *s)
{
    bool any = false;
    for (; s && !any; s = s->next)
        any = s->kind == STMT_REPEAT || stmt_is_layer(s) || has_layers(s->body) ||
              has_layers(s->otherwise);
    return any;
}

static bool count_statement(struct reckoning *r, const struct stmt *s, int64_t *layers)
{
    struct number condition;
    if (s->kind == STMT_REPEAT)
        return count_repeat(r, s, layers);
    if (s->kind == STMT_IF && !has_layers(s->body) && !has_layers(s->otherwise))
        return true; // its condition may be one that sizes alone do not decide
    if (s->kind == STMT_IF)
        return reckon(r, s->value[0], &condition) &&
               count_layers(r, condition.value != 0 ? s->body : s->otherwise, layers);
    if (s->kind == STMT_SCOPE && !stmt_is_layer(s))
        return count_layers(r, s->body, layers);
    *layers += stmt_is_layer(s);
    return true;
}

static bool count_layers(struct reckoning *r, const struct stmt *s, int64_t *layers)
{
    bool fine = true;
    for (; s && fine; s = s->next)
        fine = count_statement(r, s, layers);
    return fine;
}

int model_facts_find(const struct model_sizes *s, struct model_facts *out,
                     struct model_errors *errs)
{
    const struct model_program *p = s->program;
    struct reckoning r = {p, s->value, p->nsizes, -1, errs};
    *out = (struct model_facts){
        .tokens = program_names(p, "tokens") || program_names(p, "targets") ||
                  program_names(p, "positions"),
        .images = program_names(p, "images"),
        .labels = program_names(p, "labels"),
        .seq = model_sizes_whole(s, "seq", 0),
        .vocab = model_sizes_whole(s, "vocab", 0),
        .features = model_sizes_whole(s, "inputs", model_sizes_whole(s, "embed", 0)),
        .classes = model_sizes_whole(s, "classes", 0),
    };
    out->samples = out->tokens && binds_logits(p->syntax->body);
    return count_layers(&r, p->syntax->body, &out->layers) ? 0 : ERR_INVALID;
}
