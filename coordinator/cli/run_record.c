// SPDX-License-Identifier: Apache-2.0
// The memory of `weft run`; see run_record.h.
#include "coordinator/cli/run_record.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/system.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/source.h"

static const struct field {
    const char *name;
    size_t offset, size;
} fields[] = {
    {"request", offsetof(struct record, request), sizeof((struct record *)0)->request},
    {"hash", offsetof(struct record, hash), sizeof((struct record *)0)->hash},
    {"job", offsetof(struct record, job), sizeof((struct record *)0)->job},
    {"state", offsetof(struct record, state), sizeof((struct record *)0)->state},
    {"store", offsetof(struct record, store), sizeof((struct record *)0)->store},
    {"base", offsetof(struct record, base), sizeof((struct record *)0)->base},
    {"step", offsetof(struct record, step), sizeof((struct record *)0)->step},
};
enum { FIELDS = sizeof fields / sizeof *fields };

// last: the field of the line before, which a line that begins with a space continues.
static char *take_line(struct record *r, char *line, char *last)
{
    char *space = strchr(line, ' ');
    line[strcspn(line, "\n")] = 0;
    if (!space)
        return NULL;
    *space = 0;
    for (int i = 0; i < FIELDS; i++) {
        char *field = (char *)r + fields[i].offset;
        size_t had = last && field == last && space == line ? strlen(last) : 0;
        if (strcmp(line, fields[i].name) != 0 && !had)
            continue;
        snprintf(field + had, fields[i].size - had, "%s%s", had ? "\n" : "", space + 1);
        return field;
    }
    return NULL;
}

static void read_fields(struct record *r)
{
    char path[4200], *line = NULL, *last = NULL;
    size_t size = 0;
    snprintf(path, sizeof path, "%s/job", r->dir);
    FILE *f = fopen(path, "re");
    while (f && getline(&line, &size, f) > 0)
        last = take_line(r, line, last);
    free(line);
    if (f)
        fclose(f);
    r->there = access(path, F_OK) == 0;
    snprintf(path, sizeof path, "%s/resolved", r->dir);
    r->damaged =
        r->there && (strlen(r->request) != 32 || strlen(r->hash) != 64 || access(path, F_OK));
}

bool record_is_there(const char *base_dir, const char *name)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/.weft/%s/job", base_dir, name) < sizeof path &&
           access(path, F_OK) == 0;
}

void record_list(const char *base_dir, struct buf *out)
{
    enum { HANDFUL = 5 };
    char weft[PATH_MAX];
    struct dirent **all;
    int shown = 0, n = (size_t)snprintf(weft, sizeof weft, "%s/.weft", base_dir) < sizeof weft
                           ? scandir(weft, &all, NULL, alphasort)
                           : -1;
    for (int i = 0; i < n; i++) {
        const char *name = all[i]->d_name;
        if (shown <= HANDFUL && folder_name_ok(name) && record_is_there(base_dir, name))
            buf_printf(out, "%s%s", out->len ? ", " : "", shown++ < HANDFUL ? name : "…");
        free(all[i]);
    }
    if (n >= 0)
        free(all);
}

bool record_find_store(const char *base_dir, const char *name, char out[4096])
{
    struct record *r = heap_alloc(sizeof *r);
    char base[PATH_MAX];
    bool found = realpath(base_dir, base) &&
                 (size_t)snprintf(r->dir, sizeof r->dir, "%s/.weft/%s", base, name) < sizeof r->dir;
    if (found) {
        read_fields(r);
        (void)record_follow(r, base);
        found = *r->store != 0;
        size_t n = strlen(base);
        bool beside = strncmp(r->store, base, n) == 0 && r->store[n] == '/';
        snprintf(out, sizeof r->store, "%s%s", beside ? "./" : "", r->store + (beside ? n + 1 : 0));
    }
    free(r);
    return found;
}

const char *record_find_checkpoint(const char *text, struct arena *a, int64_t *step)
{
    const char *place;
    char store[4096];
    source_split(text, a, &place, step);
    if (source_is_path(place) || !access(place, F_OK) || !record_find_store(".", place, store))
        return source_path(place);
    return arena_strdup(a, store);
}

int record_open(struct record *r, const char *base_dir, const char *name, struct err *e)
{
    char base[PATH_MAX], weft[PATH_MAX + 8];
    *r = (struct record){.lock = -1};
    if (!realpath(base_dir, base))
        return err_errno(e, ERR_IO, "%s", base_dir);
    snprintf(weft, sizeof weft, "%s/.weft", base);
    if ((size_t)snprintf(r->dir, sizeof r->dir, "%s/%s", weft, name) >= sizeof r->dir)
        return err_set(e, ERR_INVALID, "the path %s is too long", weft);
    // In a folder that several people use somebody else may have made it before, to have his job run
    // here in our name.
    int rc = folder_make_own(weft, e);
    if (!rc)
        rc = folder_make_own(r->dir, e);
    if (!rc)
        rc = folder_lock(r->dir, &r->lock, e);
    if (!rc)
        read_fields(r);
    return rc;
}

bool record_follow(struct record *r, const char *base_dir)
{
    char store[sizeof r->store];
    size_t n = strlen(r->base);
    if (!*r->base || strcmp(r->base, base_dir) == 0)
        return false;
    if (strncmp(r->store, r->base, n) == 0 && r->store[n] == '/') {
        if ((size_t)snprintf(store, sizeof store, "%s%s", base_dir, r->store + n) < sizeof store)
            snprintf(r->store, sizeof r->store, "%s", store);
    }
    return true;
}

bool record_is_copy(const struct record *r, const char *name)
{
    struct record *other = heap_alloc(sizeof *other);
    bool named = (size_t)snprintf(other->dir, sizeof other->dir, "%s/.weft/%s", r->base, name) <
                 sizeof other->dir;
    if (named)
        read_fields(other);
    bool same = other->there && *r->job && strcmp(other->job, r->job) == 0;
    free(other);
    return same;
}

bool record_take_store(struct record *r, const char *store)
{
    if (!*store || access(store, F_OK))
        return false;
    snprintf(r->store, sizeof r->store, "%s", store);
    return true;
}

int record_write(struct record *r, struct err *e)
{
    struct buf text = {0};
    for (int i = 0; i < FIELDS; i++) {
        buf_printf(&text, "%s ", fields[i].name);
        for (const char *c = (const char *)r + fields[i].offset; *c; c++)
            buf_puts(&text, *c == '\n' ? "\n " : (char[]){*c, 0});
        buf_putc(&text, '\n');
    }
    int rc = folder_write(r->dir, "job", buf_str(&text), FOLDER_DURABLE, e);
    buf_clear(&text);
    r->there = !rc;
    return rc;
}

int record_aside(struct record *r, struct err *e)
{
    char old[4200], from[4500], to[4800], stamp[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    snprintf(old, sizeof old, "%s/old-%s-%d", r->dir, stamp, (int)getpid());
    int rc = folder_make_own(old, e);
    DIR *d = rc ? NULL : opendir(r->dir);
    for (struct dirent *f; d && !rc && (f = readdir(d));) {
        if (f->d_name[0] == '.' || strncmp(f->d_name, "old-", 4) == 0 ||
            strcmp(f->d_name, "lock") == 0)
            continue;
        snprintf(from, sizeof from, "%s/%s", r->dir, f->d_name);
        snprintf(to, sizeof to, "%s/%s", old, f->d_name);
        if (rename(from, to))
            rc = err_errno(e, ERR_IO, "%s", from);
    }
    if (d)
        closedir(d);
    for (int i = 0; i < FIELDS; i++)
        *((char *)r + fields[i].offset) = 0;
    r->there = r->damaged = false;
    return rc;
}

struct leftovers {
    int dir;
    bool known; // the files that say what is known of the job go too
};

static int remove_left(void *arg, const char *name, struct err *e)
{
    const struct leftovers *x = arg;
    bool knows = strcmp(name, "job") == 0 || strcmp(name, "lock") == 0;
    if (strncmp(name, "old-", 4) == 0 || (knows && !x->known))
        return 0;
    return durable_remove_tree(x->dir, name, e);
}

int record_remove(struct record *r, struct err *e)
{
    struct leftovers x = {.dir = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)};
    if (x.dir < 0)
        return err_errno(e, ERR_IO, "cannot open %s", r->dir);
    int rc = durable_list(x.dir, remove_left, &x, e);
    x.known = true;
    if (!rc)
        rc = durable_list(x.dir, remove_left, &x, e);
    close(x.dir);
    char *slash = strrchr(r->dir, '/');
    if (!rc && !rmdir(r->dir)) { // else old states are there
        *slash = 0;
        (void)rmdir(r->dir);
        *slash = '/';
    }
    return rc;
}

void record_close(struct record *r)
{
    system_close(&r->lock);
}
