// SPDX-License-Identifier: Apache-2.0
// Groups of parameters. See norm_groups.h.
#include "common/compile/graph/norm_groups.h"

#include <ctype.h>
#include <string.h>

#include "common/base/map.h"

size_t norm_group_len(const char *param)
{
    size_t first = strcspn(param, "/");
    for (const char *name = param; *name;) {
        size_t len = strcspn(name, "/");
        if (len == 6 && strncmp(name, "layers", len) == 0 && isdigit((unsigned char)name[len + 1]))
            return (size_t)(name - param) + len + 1 + strcspn(name + len + 1, "/");
        name += len + (name[len] == '/');
    }
    return first;
}

int norm_groups(const struct graph *g, struct arena *a, const char ***out)
{
    struct map seen = {0};
    int n = 0;
    *out = arena_array(a, const char *, g->nvalues);
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *p = &g->values[v];
        if (p->kind != VALUE_PARAM || p->alias >= 0)
            continue;
        const char *name = arena_printf(a, "%.*s", (int)norm_group_len(p->name), p->name);
        if (map_get(&seen, name))
            continue;
        (*out)[n++] = name;
        map_put(&seen, name, &seen);
    }
    map_clear(&seen);
    return n;
}
