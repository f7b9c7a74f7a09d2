// SPDX-License-Identifier: Apache-2.0
// Choices of algorithms by key, as text and on disk. See algos.h.
#include "kernels/cuda/algos.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/log.h"

enum { FILE_MOST = 4 << 20, NAME_SIZE = 64, END_SIZE = 4 + 16 + 1 };
static const char HEADER[] = "algorithms ";

void algos_init(struct algos *a, const char *owner)
{
    *a = (struct algos){.n = 0};
    snprintf(a->owner, sizeof a->owner, "%s", owner);
}

void algos_clear(struct algos *a)
{
    for (int i = 0; i < a->n; i++) {
        free(a->line[i].key);
        free(a->line[i].choice);
    }
    free(a->line);
    a->line = NULL;
    a->n = a->cap = 0;
}

// Returns the place of a key in the sorted lines; if it is not there, where it belongs.
static int find_place(const struct algos *a, const char *key, bool *found)
{
    int low = 0, high = a->n;
    *found = false;
    while (low < high) {
        int mid = (low + high) / 2, c = strcmp(a->line[mid].key, key);
        if (c == 0) {
            *found = true;
            return mid;
        }
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const char *algos_get(const struct algos *a, const char *key)
{
    bool found;
    int at = find_place(a, key, &found);
    return found ? a->line[at].choice : NULL;
}

void algos_put(struct algos *a, const char *key, const char *choice, double us)
{
    bool found;
    int at = find_place(a, key, &found);
    if (found) {
        char *old = a->line[at].choice;
        a->line[at].choice = heap_strdup(choice);
        a->line[at].us = us;
        free(old);
        return;
    }
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 16;
        a->line = realloc(a->line, sizeof *a->line * (size_t)a->cap);
        PRE(a->line);
    }
    memmove(a->line + at + 1, a->line + at, sizeof *a->line * (size_t)(a->n - at));
    a->line[at] = (struct algo){heap_strdup(key), heap_strdup(choice), us};
    a->n++;
}

// ---- text --------------------------------------------------------------------------------------

void algos_print(const struct algos *a, bool times, struct buf *out)
{
    buf_printf(out, "%s%s\n", HEADER, a->owner);
    for (int i = 0; i < a->n; i++) {
        buf_printf(out, "%s = %s", a->line[i].key, a->line[i].choice);
        if (times)
            buf_printf(out, " %.1f", a->line[i].us);
        buf_putc(out, '\n');
    }
}

// Parses a line "KEY = CHOICE[ TIME]" in place.
static bool read_line(char *line, struct algos *into)
{
    char *choice = strstr(line, " = ");
    if (!choice || choice == line)
        return false;
    *choice = 0;
    choice += 3;
    double us = 0;
    char *time = strchr(choice, ' ');
    if (time) {
        char *end;
        *time++ = 0;
        us = strtod(time, &end);
        if (end == time || *end || !(us >= 0))
            return false;
    }
    if (!*choice || strchr(line, '='))
        return false;
    algos_put(into, line, choice, us);
    return true;
}

int algos_read(struct algos *a, const char *text, struct err *e)
{
    struct algos got;
    char *all = heap_strdup(text), *save = NULL, *line = strtok_r(all, "\n", &save);
    int rc = 0;
    algos_init(&got, a->owner);
    if (!line || strncmp(line, HEADER, sizeof HEADER - 1))
        rc = err_set(e, ERR_INVALID, "choices of algorithms cannot begin with '%.40s'",
                     line ? line : "");
    else if (strcmp(line + sizeof HEADER - 1, a->owner))
        rc = err_set(e, ERR_UNSUPPORTED,
                     "the choices of algorithms belong to '%s', this device is '%s'",
                     line + sizeof HEADER - 1, a->owner);
    while (!rc && (line = strtok_r(NULL, "\n", &save)))
        if (!read_line(line, &got))
            rc = err_set(e, ERR_INVALID, "a line is no choice of an algorithm: '%.80s'", line);
    for (int i = 0; i < got.n && !rc; i++)
        algos_put(a, got.line[i].key, got.line[i].choice, got.line[i].us);
    algos_clear(&got);
    free(all);
    return rc;
}

// ---- the folder --------------------------------------------------------------------------------

// FNV-1a in 64 bits. It shows damage, not malice; xxhash is not on every GPU machine.
static uint64_t compute_digest(const char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}

static void print_file_name(const struct algos *a, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "algorithms-%016llx",
             (unsigned long long)compute_digest(a->owner, strlen(a->owner)));
}

// Prints the last line of a file: "end DIGEST\n".
static void print_end(const char *text, size_t n, char end[END_SIZE + 1])
{
    snprintf(end, END_SIZE + 1, "end %016llx\n", (unsigned long long)compute_digest(text, n));
}

// Cuts off the last line and checks its digest against the rest.
static int check_digest(char *text, struct err *e)
{
    char want[END_SIZE + 1];
    size_t n = strlen(text);
    if (n < END_SIZE)
        return err_set(e, ERR_CORRUPT, "it is cut short");
    print_end(text, n - END_SIZE, want);
    if (strcmp(text + n - END_SIZE, want))
        return err_set(e, ERR_CORRUPT, "it is cut short or its digest differs");
    text[n - END_SIZE] = 0;
    return 0;
}

void algos_load(struct algos *a, const char *folder)
{
    char name[NAME_SIZE];
    struct err e = {0};
    char *text = malloc(FILE_MOST + 1);
    PRE(text);
    print_file_name(a, name);
    int rc = folder_read(folder, name, text, FILE_MOST + 1, &e);
    bool here = rc != ERR_NOTFOUND;
    if (!rc)
        rc = check_digest(text, &e);
    if (!rc)
        rc = algos_read(a, text, &e);
    if (rc && here)
        log_warn("cuda", "timings of algorithms in %s/%s are ignored: %s", folder, name, e.text);
    free(text);
}

static void print_sealed(const struct algos *a, struct buf *out)
{
    char end[END_SIZE + 1];
    algos_print(a, true, out);
    print_end(out->data, out->len, end);
    buf_puts(out, end);
}

// Writes the folder's file again with the lines of `a` added. The caller holds the folder's lock.
static int merge_folder(const struct algos *a, const char *folder, struct err *e)
{
    struct algos all;
    struct buf text = {0};
    char name[NAME_SIZE];
    algos_init(&all, a->owner);
    algos_load(&all, folder);
    for (int i = 0; i < a->n; i++)
        algos_put(&all, a->line[i].key, a->line[i].choice, a->line[i].us);
    print_sealed(&all, &text);
    if (text.len > FILE_MOST) { // too long to be read again: keep only the new lines
        buf_reset(&text);
        print_sealed(a, &text);
    }
    print_file_name(a, name);
    int rc = folder_write(folder, name, buf_str(&text), FOLDER_LOOSE, e);
    buf_clear(&text);
    algos_clear(&all);
    return rc;
}

int algos_save(const struct algos *a, const char *folder, struct err *e)
{
    int rc = folder_make(folder, e);
    if (rc)
        return rc;
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX))
        rc = err_errno(e, ERR_IO, "cannot lock %s", folder);
    if (!rc)
        rc = merge_folder(a, folder, e);
    if (lock >= 0)
        close(lock);
    return rc;
}
