// SPDX-License-Identifier: Apache-2.0
// The model section of schema 1. See old_form.h.
//
//   model: {kind: mlp, inputs: …}                    →  {program: mlp, inputs: …}
//   model: {kind: vae, hidden: [400], …}             →  {program: vae, …}
//   model: {kind: decoder, preset: llama-8b, …}      →  {program: llama, size: 8b, …}
//
// The other keys have the names that they had. A resolved job gave every one of them, so that no
// default of today can change it; a size that a program has got since is what it was then.
#include "common/job/old_form.h"

#include <string.h>

static const struct {
    const char *kind, *preset, *program, *size; // preset null: the kind has none
} models[] = {
    {"mlp", NULL, "mlp", NULL},
    {"vae", NULL, "vae", NULL},
    {"decoder", "gpt2", "gpt2", "124m"},
    {"decoder", "gpt2-350m", "gpt2", "350m"},
    {"decoder", "gpt2-774m", "gpt2", "774m"},
    {"decoder", "gpt2-1558m", "gpt2", "1558m"},
    {"decoder", "llama", "llama", "1b"},
    {"decoder", "llama-8b", "llama", "8b"},
    {"decoder", "llama-70b", "llama", "70b"},
    {"decoder", "llama-405b", "llama", "405b"},
    {"decoder", "cookbook", "cookbook", NULL},
};
enum { MODELS = sizeof models / sizeof *models };

// The row of a kind and a preset; each may be null, for the default of that time. -1: there is none.
static int find_model(const char *kind, const char *preset)
{
    kind = kind ? kind : preset ? "decoder" : "mlp";
    preset = preset ? preset : "gpt2";
    for (int i = 0; i < MODELS; i++)
        if (strcmp(models[i].kind, kind) == 0 &&
            (!models[i].preset || strcmp(models[i].preset, preset) == 0))
            return i;
    return -1;
}

static const char *find_word(const struct tree_node *section, const char *key)
{
    const struct tree_node *n = tree_get(section, key);
    return n && n->kind == TREE_SCALAR ? n->text : NULL;
}

static void put_word(struct reading *r, struct tree_node *section, const char *key,
                     const char *word)
{
    struct tree_node *n = arena_new(r->arena, struct tree_node);
    *n = (struct tree_node){.kind = TREE_SCALAR,
                            .source = section->source,
                            .text = word,
                            .plain = true,
                            .line = section->line,
                            .column = section->column,
                            .key_line = section->key_line,
                            .key_column = section->key_column};
    tree_put(section, key, n);
}

// Sizes that were added to a program after jobs had been resolved without its text. `was` is the
// value that such a job means.
static const struct {
    const char *program, *size, *was;
} newer[] = {{"llama", "stretch", "1"}, {"llama", "tied", "0"}};

static void put_newer_sizes(struct reading *r, struct tree_node *model)
{
    const char *program = find_word(model, "program");
    for (size_t i = 0; program && i < sizeof newer / sizeof *newer; i++)
        if (strcmp(newer[i].program, program) == 0 && !tree_get(model, newer[i].size))
            put_word(r, model, newer[i].size, newer[i].was);
}

static void upgrade_model(struct reading *r, struct tree_node *model)
{
    int i = find_model(find_word(model, "kind"), find_word(model, "preset"));
    if (i < 0)
        return;
    put_word(r, r->root, "schema", "2");
    tree_drop(model, "kind");
    tree_drop(model, "preset");
    put_word(r, model, "program", models[i].program);
    if (models[i].size)
        put_word(r, model, "size", models[i].size);
}

void upgrade_tree(struct reading *r)
{
    const char *version = r->root->kind == TREE_MAP ? find_word(r->root, "schema") : NULL;
    struct tree_node *model = version ? tree_get(r->root, "model") : NULL;
    if (!model || model->kind != TREE_MAP)
        return;
    bool first = strcmp(version, "1") == 0;
    if (first)
        upgrade_model(r, model);
    if (first || (!r->file && !tree_get(model, "text")))
        put_newer_sizes(r, model);
}

bool is_old_key(const char *key)
{
    return strcmp(key, "kind") == 0 || strcmp(key, "preset") == 0;
}

void report_old_key(struct reading *r, const struct tree_node *n)
{
    const struct tree_node *section = tree_get(r->root, "model");
    const char *path = arena_printf(r->arena, "model.%s", n->key);
    int i = find_model(find_word(section, "kind"), find_word(section, "preset"));
    if (strcmp(n->key, "preset") == 0 && tree_get(section, "kind"))
        return; // told with the kind
    if (i < 0 || tree_get(section, "program"))
        tree_error_key(&r->errors, n, path, "unknown key: model.program says which model it is");
    else
        tree_error_key(&r->errors, n, path, "models are programs now: write program: %s%s%s",
                       models[i].program, models[i].size ? ", size: " : "",
                       models[i].size ? models[i].size : "");
}
