// SPDX-License-Identifier: Apache-2.0
// Where a run of Slurm's is found again; see slurm_record.h.
#include "coordinator/cli/slurm_record.h"

#include <stdio.h>
#include <string.h>

#include "common/base/folder.h"

enum { NAME_ROOM = 80, SLURM_TEXT_MAX = SLURM_ROOT + 100 };

int slurm_record_write(const char *base, const char *name, const char *job, const char *root,
                       struct err *e)
{
    char dir[SLURM_ROOT], file[NAME_ROOM], text[SLURM_TEXT_MAX];
    bool below = root[0] != '/';
    snprintf(file, sizeof file, "%s.slurm", name);
    if ((size_t)snprintf(dir, sizeof dir, "%s/.weft", base) >= sizeof dir ||
        strlen(base) + strlen(root) + 2 > SLURM_ROOT || strchr(root, '\n') || strchr(base, '\n'))
        return err_set(e, ERR_INVALID, "%s: a path is too long, or has a line's end in it", base);
    snprintf(text, sizeof text, "job %s\nroot %s%s%s\n", job, below ? base : "", below ? "/" : "",
             root);
    int rc = folder_make(dir, e);
    rc = rc ? rc : folder_check_own(dir, false, e);
    return rc ? rc : folder_write(dir, file, text, FOLDER_DURABLE, e);
}

int slurm_record_read(const char *base, const char *name, struct slurm_record *out, struct err *e)
{
    char dir[SLURM_ROOT], file[NAME_ROOM], text[SLURM_TEXT_MAX];
    char *root, *end;
    snprintf(file, sizeof file, "%s.slurm", name);
    if ((size_t)snprintf(dir, sizeof dir, "%s/.weft", base) >= sizeof dir)
        return err_set(e, ERR_INVALID, "%s: the path is too long", base);
    int rc = folder_check_own(dir, false, e); // before: another's may be a pipe that nobody writes
    rc = rc ? rc : folder_read(dir, file, text, sizeof text, e);
    if (rc)
        return rc;
    size_t digits = strncmp(text, "job ", 4) == 0 ? strspn(text + 4, "0123456789") : 0;
    root = text + 4 + digits;
    end = strrchr(text, '\n');
    if (!digits || digits >= SLURM_ID || strncmp(root, "\nroot /", 7) != 0 || !end || end[1] ||
        strchr(root + 1, '\n') != end || (size_t)(end - root) - 6 >= SLURM_ROOT)
        return err_set(e, ERR_DATA, "%s/%s is none of weft's", dir, file);
    *out = (struct slurm_record){0};
    memcpy(out->job, text + 4, digits);
    memcpy(out->root, root + 6, (size_t)(end - root) - 6);
    return 0;
}
