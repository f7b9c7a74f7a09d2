// SPDX-License-Identifier: Apache-2.0
// What a communicator of NCCL took. See nccl_memory.h. The file is a line, "BYTES MODEL".
#include "common/plan/nccl_memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "common/base/folder.h"

static const char name[] = "nccl-memory";
static const uint64_t most = (uint64_t)4 << 30; // more was taken by somebody else

int nccl_memory_keep(const char *model, uint64_t bytes, struct err *e)
{
    char folder[PATH_MAX], text[2 * NCCL_MODEL];
    snprintf(text, sizeof text, "%" PRIu64 " %.63s\n", bytes, model);
    if (bytes > most)
        return 0;
    int rc = folder_find_home("XDG_CACHE_HOME", ".cache", "weft", folder, sizeof folder, e);
    rc = rc ? rc : folder_make(folder, e);
    return rc ? rc : folder_write(folder, name, text, FOLDER_LOOSE, e);
}

bool nccl_memory_find(char model[NCCL_MODEL], uint64_t *bytes)
{
    char folder[PATH_MAX], text[2 * NCCL_MODEL];
    return !folder_find_home("XDG_CACHE_HOME", ".cache", "weft", folder, sizeof folder, NULL) &&
           !folder_read(folder, name, text, sizeof text, NULL) &&
           sscanf(text, "%19" SCNu64 " %63[^\n]", bytes, model) == 2 && *bytes && *bytes <= most;
}
