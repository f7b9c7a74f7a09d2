// SPDX-License-Identifier: Apache-2.0
// See job_json.h.
#include "common/job/job_json.h"

#include <string.h>

#include "common/base/json.h"
#include "common/job/job_tree.h"

// What JSON takes for a number, YAML does too.
static bool is_number(struct arena *a, const char *text)
{
    struct json *value;
    return !json_parse(a, text, strlen(text), &value, NULL) && value->type == JSON_NUMBER;
}

static void put_scalar(struct json_out *w, const char *key, struct arena *a,
                       const struct tree_node *node)
{
    if (tree_is_null(node))
        json_null(w, key);
    else if (node->plain && (!strcmp(node->text, "true") || !strcmp(node->text, "false")))
        json_bool(w, key, node->text[0] == 't');
    else if (node->plain && is_number(a, node->text))
        json_raw(w, key, node->text);
    else
        json_str(w, key, node->text);
}

static void put_node(struct json_out *w, const char *key, struct arena *a,
                     const struct tree_node *node)
{
    if (node->kind != TREE_MAP && node->kind != TREE_LIST) {
        put_scalar(w, key, a, node);
        return;
    }
    if (node->kind == TREE_MAP)
        json_object(w, key);
    else
        json_array(w, key);
    for (const struct tree_node *c = node->first; c; c = c->next)
        put_node(w, node->kind == TREE_MAP ? c->key : NULL, a, c);
    json_end(w);
}

int job_text_json(const char *text, struct buf *out, struct err *e)
{
    const struct tree_source source = {.name = "the job", .one_line = true};
    struct arena a;
    struct json_out w;
    arena_init(&a);
    struct tree_errors errors = {.arena = &a};
    const struct tree_node *root = tree_read(&source, text, strlen(text), &errors);
    int rc = 0;
    if (!root || errors.n)
        rc = err_set(e, ERR_INVALID, "the job's text cannot be read: %s",
                     errors.n ? errors.items[0].message : "it is no YAML");
    json_out_init(&w, out);
    if (!rc)
        put_node(&w, NULL, &a, root);
    json_out_clear(&w);
    arena_clear(&a);
    return rc;
}
