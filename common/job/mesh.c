// SPDX-License-Identifier: Apache-2.0
// The mesh of a job file: an ordered map from axis to size. This version trains over data-parallel
// meshes only, so of the known names it takes dp and its alias; the others get a plain refusal.
#include <string.h>

#include "common/job/reading.h"

static const char *const built[] = {"dp", "data"};
static const char *const known[] = {"fsdp",   "tp",      "cp",   "pp",    "ep",    "model",
                                    "tensor", "context", "pipe", "stage", "expert"};
enum {
    BUILT = sizeof built / sizeof *built,
    KNOWN = sizeof known / sizeof *known,
    LARGEST = 65536, // devices
};

static bool is_one_of(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool axis_name(const struct value *axis, const char *name)
{
    if (is_one_of(name, built, BUILT))
        return true;
    if (is_one_of(name, known, KNOWN))
        tree_error_key(axis->errors, axis->node, axis->path,
                       "this version trains over data-parallel meshes only: the axis dp");
    else
        tree_error_key(axis->errors, axis->node, axis->path,
                       "unknown axis: this version knows dp (or data)");
    return false;
}

static bool axis_size(const struct value *axis, int64_t *size)
{
    static const struct schema_row any = {.type = SCHEMA_INT};
    struct value v = *axis;
    v.row = &any;
    if (!value_read_int(&v, size))
        return false;
    if (*size == -1 || (*size >= 1 && *size <= LARGEST))
        return true;
    return value_error(axis,
                       "%lld will not do: an axis has 1 to %d devices, or -1 for what is left",
                       (long long)*size, LARGEST);
}

bool value_read_mesh(const struct value *v, void *field)
{
    struct job_mesh *mesh = field;
    if (v->node->kind == TREE_BROKEN)
        return false;
    if (v->node->kind != TREE_MAP || v->node->count == 0)
        return value_error(v, "must be a map such as {dp: 2}, not %s",
                           v->node->kind == TREE_MAP ? "empty" : tree_kind_text(v->node));
    bool ok = true;
    mesh->n = 0;
    for (const struct tree_node *n = v->node->first; n; n = n->next) {
        struct value axis = *v;
        axis.node = n;
        axis.path = arena_printf(v->arena, "%s.%.100s", v->path, n->key);
        struct job_axis at = {.name = n->key};
        if (!axis_name(&axis, n->key) || !axis_size(&axis, &at.size)) {
            ok = false;
        } else if (mesh->n > 0) {
            tree_error_key(v->errors, n, axis.path, "another name of the axis %s: give one",
                           mesh->axis[0].name);
            ok = false;
        } else {
            mesh->axis[mesh->n++] = at;
        }
    }
    return ok;
}

void value_print_mesh(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct job_mesh *mesh = field;
    buf_putc(to, '{');
    for (int i = 0; i < mesh->n; i++) {
        buf_printf(to, "%s%s: ", i ? ", " : "", mesh->axis[i].name);
        value_print_int(row, &mesh->axis[i].size, to);
    }
    buf_putc(to, '}');
}
