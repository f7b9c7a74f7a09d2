// SPDX-License-Identifier: Apache-2.0
// The weft that `weft up` started on a host: says its version, gets its order, and is a `weft run` of an
// allocation from then on, while a thread reads what comes over standard input (up_order.h).
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "coordinator/cli/up_order.h"
#include "coordinator/cli/verb_run.h"

// False: the input has ended before.
static bool read_bytes(char *out, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(0, out + at, len - at);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static int read_order(char bytes[UP_ORDER_MAX + 1], struct up_order *out, struct err *e)
{
    char line[64];
    size_t n = 0, len;
    do {
        if (n == sizeof line - 1 || !read_bytes(line + n, 1))
            return err_set(e, ERR_PEER, "`weft up` has ended before it said what is to be done");
    } while (line[n++] != '\n');
    line[n - 1] = 0;
    int rc = up_order_length(line, &len, e);
    if (!rc && !read_bytes(bytes, len))
        rc = err_set(e, ERR_PEER, "`weft up` has ended before its order was whole");
    return rc ? rc : up_order_parse(bytes, len, out, e);
}

// What a signal does, the process's own reader of signals does (own_worker.h).
static void *hear_more(void *arg)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};
    char what;
    (void)arg;
    while (poll(&p, 1, UP_SILENT_MS) == 1 && read(0, &what, 1) == 1)
        if (what != '.')
            (void)kill(getpid(), what == 's' ? SIGINT : SIGTERM);
    (void)kill(getpid(),
               SIGTERM); // before it is said, for which there may be no reader, nor an end
    plain_error("`weft up` is not heard any more: this host saves and stops");
    return NULL;
}

static int start_hearing(struct err *e)
{
    sigset_t all, before; // the thread is not to take them
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    errno = pthread_create(&thread, NULL, hear_more, NULL);
    int rc = errno ? err_errno(e, ERR_IO, "cannot start a thread") : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

// Two members of one machine would each use all of its devices. Containers of one boot are machines of
// their own, with a folder of their own for what a host keeps.
static void say_hello(void)
{
    const char *tmp = getenv("TMPDIR");
    char boot[64];
    struct stat st = {0};
    (void)folder_read("/proc/sys/kernel/random", "boot_id", boot, sizeof boot, NULL);
    (void)stat(tmp && *tmp == '/' ? tmp : "/tmp", &st);
    plain_printf(stdout, UP_HELLO WEFT_VERSION " on %.*s.%llx-%llx\n", (int)strcspn(boot, "\n"),
                 boot, (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    fflush(stdout);
}

int up_member(const struct verb *v)
{
    static char bytes[UP_ORDER_MAX + 1];
    static struct up_order o;
    static struct args args;
    static struct several s;
    struct err e = {0};
    say_hello();
    if (read_order(bytes, &o, &e)) {
        complain(v, e.text, NULL, "start `weft up` where all hosts are reached from");
        return e.code == ERR_PEER ? SEVERAL_AGAIN : SEVERAL_PERSON;
    }
    if (chdir(o.folder)) {
        err_errno(&e, ERR_NOTFOUND, "there is no folder %s here", o.folder);
        complain(
            v, e.text, o.folder,
            "start `weft up` in a folder that all hosts see under one path, with the job file");
        return SEVERAL_PERSON;
    }
    up_order_take(&o, &s);
    int rc = flags_parse(&args, v, o.nwords, (char **)(void *)o.words);
    if (rc)
        return SEVERAL_PERSON;
    if (start_hearing(&e)) {
        complain(v, e.text, NULL, "raise the limit of threads there");
        return CLIENT_FAILED;
    }
    return run_of_several(v, &args, &s);
}
