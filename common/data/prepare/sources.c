// SPDX-License-Identifier: Apache-2.0
// Inputs by name and pattern. See sources.h.
#include "common/data/prepare/sources.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "common/data/pattern.h"

// Whether a file's name says that it holds lines of JSON, packed or not.
static bool holds_lines(const char *path)
{
    static const char *const packings[] = {".gz", ".zst"}, *const endings[] = {".jsonl", ".ndjson",
                                                                               ".json"};
    size_t len = strlen(path);
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(packings[i]);
        if (len > n && memcmp(path + len - n, packings[i], n) == 0) {
            len -= n;
            break;
        }
    }
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(endings[i]);
        if (len > n && memcmp(path + len - n, endings[i], n) == 0)
            return true;
    }
    return false;
}

static int add_source(struct sources *s, struct arena *a, struct xxh3 *x, const char *path,
                      const char *format, struct err *e)
{
    struct stat st = {0};
    bool standard = strcmp(path, "-") == 0;
    if (!standard && stat(path, &st))
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s", path);
    if (S_ISDIR(st.st_mode))
        return err_set(e, ERR_INVALID, "%s is a folder: name its files, as '%s/*.jsonl'", path,
                       path);
    for (int i = 0; i < s->n; i++)
        if (standard && strcmp(s->v[i].path, path) == 0)
            return err_set(e, ERR_INVALID, "standard input is there twice");
    struct source one = {.path = path,
                         .stream = standard || !S_ISREG(st.st_mode),
                         .lines = format ? strcmp(format, "jsonl") == 0 : holds_lines(path),
                         .size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0};
    s->v = arena_grow(a, s->v, sizeof *s->v, s->n, &s->cap);
    s->v[s->n++] = one;
    s->bytes += one.size;
    s->streams |= one.stream;
    xxh3_update(x, path, strlen(path) + 1);
    uint64_t facts[] = {one.lines, one.size, one.stream ? 0 : (uint64_t)st.st_mtim.tv_sec,
                        one.stream ? 0 : (uint64_t)st.st_mtim.tv_nsec};
    xxh3_update(x, facts, sizeof facts);
    return 0;
}

int sources_find(struct sources *s, struct arena *a, const char *const *words, int n,
                 const char *format, struct err *e)
{
    *s = (struct sources){0};
    if (format && strcmp(format, "text") != 0 && strcmp(format, "jsonl") != 0)
        return err_set(e, ERR_INVALID, "--format is text or jsonl, not '%s'", format);
    struct xxh3 *x = xxh3_new();
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        const char *one = words[i], **files = &one;
        int found = 1;
        if (strcmp(words[i], "-") != 0)
            rc = pattern_files(NULL, words[i], a, &files, &found, e);
        else if (!format)
            rc = err_set(e, ERR_INVALID,
                         "standard input has no name that says what it holds: --format text (one "
                         "document) or --format jsonl (one a line)");
        for (int k = 0; k < found && !rc; k++)
            rc = add_source(s, a, x, files[k], format, e);
    }
    s->digest = xxh3_digest(x);
    xxh3_free(x);
    return rc;
}
