// SPDX-License-Identifier: Apache-2.0
// What a job did in allocations; see run_history.h.
#include "coordinator/cli/run_history.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/heap.h"

enum { WHY_HISTORY_MAX = 16 << 20, DIR_ROOM = 4200, FILE_ROOM = 80 };

static int find_place(const char *root, const char *name, char dir[DIR_ROOM], char file[FILE_ROOM],
                      struct err *e)
{
    if ((size_t)snprintf(dir, DIR_ROOM, "%s/.weft", root) >= DIR_ROOM)
        return err_set(e, ERR_INVALID, "%.60s…: the path is too long", root);
    snprintf(file, FILE_ROOM, "%s.history", name);
    return folder_check_own(dir, false, e);
}

int run_history_read(const char *root, const char *name, Weft__V1__WhyReply **out, struct err *e)
{
    char dir[DIR_ROOM], file[FILE_ROOM], path[DIR_ROOM + FILE_ROOM];
    struct buf bytes = {0};
    *out = NULL;
    if ((size_t)snprintf(dir, sizeof dir, "%s/.weft", root) < sizeof dir && access(dir, F_OK))
        return err_set(e, ERR_NOTFOUND, "there is no %s", dir);
    int rc = find_place(root, name, dir, file, e);
    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    rc = folder_read_whole(AT_FDCWD, path, true, WHY_HISTORY_MAX, &bytes, e);
    if (!rc) {
        *out = weft__v1__why_reply__unpack(NULL, bytes.len, (const uint8_t *)buf_str(&bytes));
        rc = *out ? 0 : err_set(e, ERR_DATA, "%s is no history of a job", path);
    }
    buf_clear(&bytes);
    return rc;
}

// Times of both, each kind once.
static size_t add_times(Weft__V1__Spent *all, const Weft__V1__WhyReply *r, size_t n)
{
    for (size_t i = 0; i < r->n_spent; i++) {
        size_t at = 0;
        while (at < n && strcmp(all[at].what, r->spent[i]->what) != 0)
            at++;
        if (at == n) {
            all[n] = *r->spent[i];
            all[n++].ms = 0;
        }
        all[at].ms += r->spent[i]->ms;
    }
    return n;
}

int run_history_write(const char *root, const char *name, const Weft__V1__WhyReply *before,
                      const Weft__V1__WhyReply *now, struct err *e)
{
    char dir[DIR_ROOM], file[FILE_ROOM];
    int rc = find_place(root, name, dir, file, e);
    if (rc)
        return rc;
    size_t nbefore = before ? before->n_events : 0, all = nbefore + now->n_events;
    size_t first = all > HISTORY_EVENTS ? all - HISTORY_EVENTS : 0;
    size_t nspent = (before ? before->n_spent : 0) + now->n_spent;
    Weft__V1__Event **events = heap_alloc((all + 1) * sizeof *events);
    Weft__V1__Spent *spent = heap_alloc((nspent + 1) * sizeof *spent);
    Weft__V1__Spent **list = heap_alloc((nspent + 1) * sizeof *list);
    Weft__V1__WhyReply whole = *now;
    for (size_t i = 0; i < all; i++)
        events[i] = i < nbefore ? before->events[i] : now->events[i - nbefore];
    nspent = before ? add_times(spent, before, 0) : 0;
    nspent = add_times(spent, now, nspent);
    for (size_t i = 0; i < nspent; i++)
        list[i] = &spent[i];
    whole.spent = list;
    whole.n_spent = nspent;
    size_t len;
    for (;; first += (all - first + 1) / 2) {
        whole.events = events + first;
        whole.n_events = all - first;
        whole.trimmed = now->trimmed || first || (before && before->trimmed);
        len = weft__v1__why_reply__get_packed_size(&whole);
        if (len <= WHY_HISTORY_MAX || first == all)
            break; // else texts are long, and nobody could read it
    }
    uint8_t *bytes = heap_alloc(len + 1);
    weft__v1__why_reply__pack(&whole, bytes);
    rc = folder_write_bytes(dir, file, bytes, len, 0600, FOLDER_LOOSE, e);
    free(bytes);
    free(events);
    free(spent);
    free(list);
    return rc;
}
