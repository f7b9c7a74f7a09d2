// SPDX-License-Identifier: Apache-2.0
// The mesh of a job file: an ordered map from axis to size, and which axis a name stands for.
#include <ctype.h>
#include <string.h>

#include "common/base/rank_max.h"
#include "common/job/setting.h"

// The usual axes, each with its other names. A rule may use any of them for the one in the mesh.
enum { NAMES = 4 };
static const char *const families[][NAMES] = {
    {"dp", "data"},
    {"fsdp"},
    {"tp", "model", "tensor"},
    {"cp", "context", "sequence"},
    {"pp", "pipe", "stage", "pipeline"},
    {"ep", "expert"},
};
enum { FAMILIES = sizeof families / sizeof *families };

static int find_family(const char *name)
{
    for (int f = 0; f < FAMILIES; f++)
        for (int i = 0; i < NAMES && families[f][i]; i++)
            if (strcmp(families[f][i], name) == 0)
                return f;
    return -1;
}

int job_axis_find(const struct job_mesh *mesh, const char *name)
{
    int family = find_family(name);
    for (int i = 0; i < mesh->n; i++)
        if (strcmp(mesh->axis[i].name, name) == 0)
            return i;
    for (int i = 0; i < mesh->n && family >= 0; i++)
        if (find_family(mesh->axis[i].name) == family)
            return i;
    return family >= 0 ? -1 : -2;
}

static bool check_axis_name(const struct setting *axis, const char *name,
                            const struct job_mesh *mesh)
{
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || (n && name[n] == '_'))
        n++;
    if (!isalpha((unsigned char)name[0]) || name[n] || n > MAX_AXIS_NAME) {
        tree_error_key(axis->errors, axis->node, axis->path,
                       "an axis has a name of 1 to %d letters, digits and _", MAX_AXIS_NAME);
        return false;
    }
    if (dimension_known(name) && find_family(name) < 0) {
        tree_error_key(axis->errors, axis->node, axis->path,
                       "%s is a dimension of tensors, which the rules cut on axes: take another "
                       "name",
                       name);
        return false;
    }
    int same = job_axis_find(mesh, name);
    if (same < 0)
        return true;
    tree_error_key(axis->errors, axis->node, axis->path, "another name of the axis %s: give one",
                   mesh->axis[same].name);
    return false;
}

static bool read_axis_size(const struct setting *axis, int64_t *size)
{
    static const struct schema_row any = {.type = SCHEMA_INT};
    struct setting plain = *axis;
    plain.row = &any;
    if (!setting_read_int(&plain, size))
        return false;
    if (*size == -1 || (*size >= 1 && *size <= JOB_MAX_DEVICES))
        return true;
    return setting_error(axis,
                         "%lld will not do: an axis has 1 to %d devices, or -1 for what is left",
                         (long long)*size, JOB_MAX_DEVICES);
}

int job_check_devices(const struct job *job, struct err *e)
{
    if (job->resources.devices <= RANK_MAX)
        return 0;
    return err_set(e, ERR_INVALID, "resources.devices: is %lld: a job runs on at most %d devices",
                   (long long)job->resources.devices, RANK_MAX);
}

bool setting_read_mesh(const struct setting *s, void *field)
{
    struct job_mesh *mesh = field;
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (s->node->kind != TREE_MAP || s->node->count == 0)
        return setting_error(s, "must be a map such as {dp: 2}, not %s",
                             s->node->kind == TREE_MAP ? "empty" : tree_kind_text(s->node));
    if (s->node->count > MAX_AXES)
        return setting_error(s, "has %d axes: it may have %d", s->node->count, MAX_AXES);
    bool ok = true, open = false;
    mesh->n = 0;
    for (const struct tree_node *n = s->node->first; n; n = n->next) {
        struct setting axis = setting_member(s, n);
        struct job_axis at = {.name = n->key};
        if (!check_axis_name(&axis, n->key, mesh) || !read_axis_size(&axis, &at.size))
            ok = false;
        else if (at.size == -1 && open)
            ok = setting_error(&axis, "-1 is what is left: only one axis may be that");
        else
            mesh->axis[mesh->n++] = at;
        open |= at.size == -1;
    }
    return ok;
}

void setting_print_mesh(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct job_mesh *mesh = field;
    buf_putc(to, '{');
    for (int i = 0; i < mesh->n; i++) {
        buf_printf(to, "%s%s: ", i ? ", " : "", mesh->axis[i].name);
        setting_print_int(row, &mesh->axis[i].size, to);
    }
    buf_putc(to, '}');
}
