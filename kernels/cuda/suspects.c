// SPDX-License-Identifier: Apache-2.0
// Files that remember the configurations under trial. See suspects.h.
#include "kernels/cuda/suspects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/log.h"
#include "kernels/cuda/algos.h"

// Prints the two lines of a trial's file, and to s->path where it lies.
static void print_trial(struct suspects *s, const char *key, const char *choice, struct buf *text)
{
    buf_printf(text, "%s = %s\n%s\n", key, choice, s->owner);
    snprintf(s->path, sizeof s->path, "%s/suspect-%016llx", s->folder,
             (unsigned long long)algos_digest(text->data, text->len));
}

// Opens the trial's file and locks it. −1: it could not. *tried: since another process, which tries
// the same now, has it locked.
static int open_locked(const char *path, bool *tried)
{
    struct stat st = {0};
    int fd = -1;
    while (st.st_nlink == 0) { // whoever had it locked has removed it: it must be made anew
        if (fd >= 0)
            close(fd);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &st)) {
            *tried = errno == EWOULDBLOCK;
            close(fd);
            return -1;
        }
    }
    return fd;
}

static void warn_once(struct suspects *s, const char *why)
{
    if (!s->warned)
        log_warn("cuda",
                 "%s: %s: configurations are tried although nothing remembers one that ends "
                 "the process",
                 s->folder, why);
    s->warned = true;
}

// Whether an earlier process left the locked file behind. If not, it is written and kept open.
static bool is_left(struct suspects *s, int fd, const struct buf *text)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        close(fd);
        return true;
    }
    if (write(fd, text->data, text->len) != (ssize_t)text->len) {
        warn_once(s, strerror(errno));
        (void)unlink(s->path);
        close(fd);
        return false;
    }
    s->trial = fdopen(fd, "r");
    PRE(s->trial);
    return false;
}

bool suspects_begin(struct suspects *s, const char *key, const char *choice)
{
    struct buf text = {0};
    struct err why = {0};
    bool tried = false, left = false;
    PRE(!s->trial);
    if (!s->folder)
        return true;
    if (folder_make(s->folder, &why)) {
        warn_once(s, why.text);
        return true;
    }
    print_trial(s, key, choice, &text);
    int fd = open_locked(s->path, &tried);
    if (fd >= 0)
        left = is_left(s, fd, &text);
    else if (!tried)
        warn_once(s, strerror(errno));
    buf_clear(&text);
    return !left;
}

void suspects_end(struct suspects *s)
{
    if (s->trial)
        (void)unlink(s->path);
    suspects_close(s);
}

void suspects_close(struct suspects *s)
{
    if (s->trial)
        fclose(s->trial);
    s->trial = NULL;
}
