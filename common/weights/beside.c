// SPDX-License-Identifier: Apache-2.0
// Folders that appear whole; files beside weights. See beside.h.
#include "common/weights/beside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/path.h"
#include "common/base/system.h"
#include "common/ckpt/durable.h"

enum { LARGEST_FILE = 256 << 20 };

// ---- folders that appear whole -------------------------------------------------------------------

static bool is_empty(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *it;
    bool empty = d;
    while (d && empty && (it = readdir(d)))
        empty = !strcmp(it->d_name, ".") || !strcmp(it->d_name, "..");
    if (d)
        closedir(d);
    return empty;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    (void)remove(path);
    return 0;
}

// Makes the folder and locks it; false: another process has it, or something is in the way (errno).
static bool make_locked(struct fresh *f)
{
    struct stat st, there;
    for (int tries = 0; tries < 3; tries++) {
        bool made = mkdir(f->tmp, 0755) == 0;
        if (!made && errno != EEXIST)
            return false;
        f->fd = open(f->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (f->fd < 0 || flock(f->fd, LOCK_EX | LOCK_NB) || fstat(f->fd, &st))
            return false;
        bool same = !lstat(f->tmp, &there) && there.st_ino == st.st_ino;
        if (made && same)
            return true;
        if (same) // nobody holds it: a killed process left it
            (void)nftw(f->tmp, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
        close(f->fd);
        f->fd = -1;
    }
    errno = EEXIST;
    return false;
}

int fresh_begin(struct fresh *f, const char *path, struct arena *a, struct err *e)
{
    char *name = arena_strdup(a, path);
    size_t n = strlen(name);
    struct stat st;
    while (n > 1 && name[n - 1] == '/')
        name[--n] = 0;
    if (!n || !strcmp(name, ".") || !strcmp(name, "/"))
        return err_set(e, ERR_INVALID, "'%s' is no name for a new folder", path);
    if (!lstat(name, &st) && S_ISLNK(st.st_mode))
        return err_set(e, ERR_EXISTS, "%s is a link: a new folder cannot take its place", name);
    if (!access(name, F_OK) && !is_empty(name))
        return err_set(e, ERR_EXISTS, "%s is there already, and is no empty folder", name);
    *f = (struct fresh){arena_printf(a, "%s" FRESH_SUFFIX, name), -1};
    if (make_locked(f))
        return 0;
    int rc = errno == EWOULDBLOCK
                 ? err_set(e, ERR_EXISTS, "another process makes %s at this moment", name)
                 : err_errno(e, ERR_IO, "cannot make %s", f->tmp);
    system_close(&f->fd);
    *f = (struct fresh){0};
    return rc;
}

int fresh_end(struct fresh *f, const char *path, struct err *e)
{
    char parent[4096];
    int rc = fsync(f->fd) ? err_errno(e, ERR_IO, "cannot sync %s", f->tmp) : 0;
    if (!rc && rename(f->tmp, path))
        rc = err_errno(e, errno == ENOTEMPTY || errno == EEXIST ? ERR_EXISTS : ERR_IO,
                       "cannot rename %s to %s", f->tmp, path);
    if (rc)
        return rc;
    path_folder(f->tmp, parent, sizeof parent);
    close(f->fd);
    *f = (struct fresh){0};
    return folder_sync(parent, e);
}

void fresh_clear(struct fresh *f)
{
    if (!f->tmp)
        return;
    (void)nftw(f->tmp, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    close(f->fd);
    *f = (struct fresh){0};
}

// ---- files beside weights ------------------------------------------------------------------------

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
};

static int copy_file(int from, int to, const char *name, struct err *e)
{
    struct buf bytes = {0};
    int rc = folder_read_whole(from, name, true, LARGEST_FILE, &bytes, e);
    rc = rc ? rc : durable_write_file(to, name, buf_str(&bytes), bytes.len, e);
    buf_clear(&bytes);
    if (rc == ERR_NOTFOUND) // its link is there
        rc = e ? (e->code = ERR_DATA) : ERR_DATA;
    return rc;
}

int beside_copy(const char *from, const char *to, int *n, struct err *e)
{
    int rc = 0, in = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC), out = -1;
    *n = 0;
    for (size_t i = 0; in >= 0 && !rc && i < sizeof names / sizeof *names; i++) {
        if (faccessat(in, names[i], F_OK, AT_SYMLINK_NOFOLLOW)) // a link to nothing is no absence
            continue;
        if (out < 0 && ((mkdir(to, 0755) && errno != EEXIST) ||
                        (out = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0))
            rc = err_errno(e, ERR_IO, "cannot make %s", to);
        if (!rc)
            rc = copy_file(in, out, names[i], e);
        ++*n;
    }
    if (out >= 0 && !rc)
        rc = durable_fsync(out, to, e);
    system_close(&in);
    system_close(&out);
    return rc;
}

// ---- token ids -----------------------------------------------------------------------------------

const char *const token_id_fields[TOKEN_ID_FIELDS] = {"bos_token_id", "eos_token_id",
                                                      "pad_token_id"};

static bool is_token_id(const struct json *v)
{
    // −1 stands for none in published files.
    return v->type == JSON_NUMBER && v->is_int && v->integer >= -1 && v->integer <= INT32_MAX;
}

int token_ids_read(const struct json *from, const char *file, struct arena *a,
                   const char *ids[TOKEN_ID_FIELDS], struct err *e)
{
    if (from->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "%s is no object", file);
    for (int i = 0; i < TOKEN_ID_FIELDS; i++) {
        const struct json *v = json_get(from, token_id_fields[i]);
        const bool list = v && v->type == JSON_ARRAY;
        struct buf text = {0};
        ids[i] = NULL;
        if (!v || v->type == JSON_NULL || (list && !v->first))
            continue;
        for (const struct json *k = list ? v->first : v; k; k = list ? k->next : NULL) {
            if (!is_token_id(k)) {
                buf_clear(&text);
                return err_set(e, ERR_DATA, "%s: %s is no token id and no list of them", file,
                               token_id_fields[i]);
            }
            buf_printf(&text, "%s%lld",
                       !list           ? ""
                       : k == v->first ? "["
                                       : ", ",
                       (long long)k->integer);
        }
        buf_puts(&text, list ? "]" : "");
        ids[i] = buf_keep(&text, a);
    }
    return 0;
}
