// SPDX-License-Identifier: Apache-2.0
// The table of pictures. See picture.h.
#include "common/explain/picture.h"

#include "common/explain/picture_draw.h"

static const struct {
    const char *name;
    void (*print)(const struct compiled *c, int width, struct buf *out);
} pictures[PICTURE_KINDS] = {
    [PICTURE_MESH] = {"mesh", picture_mesh},
    [PICTURE_SHARDING] = {"sharding", picture_sharding},
    [PICTURE_SCHEDULE] = {"schedule", picture_schedule},
    [PICTURE_MEMORY] = {"memory", picture_memory},
};

const char *picture_name(enum picture p)
{
    return pictures[p].name;
}

void picture_print(enum picture p, const struct compiled *c, int width, struct buf *out)
{
    pictures[p].print(c, width < PICTURE_NARROWEST ? PICTURE_NARROWEST : width, out);
}
