// SPDX-License-Identifier: Apache-2.0
// A rank's double for the tests of the worker: the test program itself, run again as weft-rank. The
// text of its assigned job says what it does, word by word:
//   ready      sends Ready            page N    makes its page, at step N
//   say TEXT   prints a line          flood N   prints N MiB in lines
//   hold       lives until it is ended, or asked to stop by a frame: then it exits with 75
//   stay       the same, but it does not care about being asked
//   garbage    writes what is no frame exit N   ends
//   chatter    when it hears a frame: sends CHATTER_FRAMES at once, and ends
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "tests/support/frame_wait.h"

// A zombie does not: it only waits to be noticed.
static inline bool lives(int pid)
{
    char path[64], text[200] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return false;
    (void)!read(fd, text, sizeof text - 1);
    close(fd);
    const char *p = strrchr(text, ')');
    return p && p[2] != 'Z' && p[2] != 'X';
}

struct double_rank {
    struct frame_conn conn;
    const char *dir;
    int parent, rank;
};

static void double_send(struct double_rank *d, const Weft__Rank__Frame *f)
{
    if (frame_send_wait(&d->conn, f, clock_mono_ns() + 30 * CLOCK_S, NULL))
        _exit(69);
}

// Waits for a frame; its end is the agent's end.
static Weft__Rank__Frame *double_hear(struct double_rank *d)
{
    Weft__Rank__Frame *f = NULL;
    if (frame_recv_wait(&d->conn, &f, clock_mono_ns() + 120 * CLOCK_S, NULL))
        _exit(69);
    return f;
}

static void double_hold(struct double_rank *d, bool cares)
{
    for (;;) {
        Weft__Rank__Frame *f = double_hear(d);
        if (f->body_case == WEFT__RANK__FRAME__BODY_LOST)
            _exit(69);
        if (cares && f->body_case == WEFT__RANK__FRAME__BODY_STOP)
            _exit(75);
        weft__rank__frame__free_unpacked(f, NULL);
    }
}

static void double_flood(int mib)
{
    char line[1025];
    memset(line, 'x', sizeof line);
    line[1023] = '\n';
    for (int i = 0; i < mib * 1024; i++)
        if (write(1, line, 1024) < 0 && errno != EAGAIN)
            _exit(70);
}

static void double_ready(struct double_rank *d)
{
    FRAME_BODY(b, Ready, ready);
    b.plan_hash = frame_text("hash");
    FRAME(f, READY, ready, &b);
    double_send(d, &f);
}

enum { CHATTER_FRAMES = 2000, CHATTER_KEY = 100 }; // together three turns of who reads them

static void double_chatter(struct double_rank *d)
{
    static char key[CHATTER_KEY + 1], bytes[CHATTER_FRAMES * 2 * CHATTER_KEY];
    int room = sizeof bytes;
    memset(key, 'k', CHATTER_KEY);
    FRAME_BODY(b, KvGet, kv_get);
    b.key = key;
    FRAME(f, KV_GET, kv_get, &b);
    size_t at = 0, len = weft__rank__frame__get_packed_size(&f);
    for (int i = 0; i < CHATTER_FRAMES; i++, at += 4 + len) {
        bytes[at] = (char)len;
        weft__rank__frame__pack(&f, (uint8_t *)bytes + at + 4);
    }
    setsockopt(d->conn.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    _exit(send(d->conn.fd, bytes, at, MSG_NOSIGNAL) == (ssize_t)at ? 0 : 70);
}

static void double_page(struct double_rank *d, int step)
{
    char path[5000];
    struct progress_page *page;
    snprintf(path, sizeof path, "%s/page-%04d", d->dir, d->rank);
    if (page_create(path, d->rank, &page, NULL))
        _exit(70);
    page_step(page, step);
    page_state(page, RANK_RUNNING);
}

static void double_obey(struct double_rank *d, char *job)
{
    for (char *save, *word = strtok_r(job, " \n", &save); word;
         word = strtok_r(NULL, " \n", &save)) {
        char *next =
            strchr("pfse", word[0]) && strcmp(word, "stay") ? strtok_r(NULL, " \n", &save) : NULL;
        if (!strcmp(word, "ready"))
            double_ready(d);
        else if (!strcmp(word, "page"))
            double_page(d, atoi(next));
        else if (!strcmp(word, "say"))
            dprintf(1, "%s\n", next);
        else if (!strcmp(word, "flood"))
            double_flood(atoi(next));
        else if (!strcmp(word, "garbage"))
            (void)!write(d->conn.fd, "\377\377\377\377", 4);
        else if (!strcmp(word, "chatter") && double_hear(d))
            double_chatter(d);
        else if (!strcmp(word, "hold") || !strcmp(word, "stay"))
            double_hold(d, word[0] == 'h');
        else if (!strcmp(word, "exit"))
            _exit(atoi(next));
    }
}

// Of the flags of weft-rank; −1: this is the test itself.
static int double_main(int argc, char **argv)
{
    struct double_rank d = {.dir = ""};
    int fd = -1;
    if (argc > 3 && !strcmp(argv[1], "--probe")) {
        if (strcmp(argv[3], "cpu")) // a host without GPUs
            return 71;
        puts("{\"kind\":\"cpu\",\"devices\":[{\"index\":0,\"model\":\"double\",\"memory\":1024},"
             "{\"index\":1,\"model\":\"double\",\"memory\":1024}]}");
        return 0;
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        fd = !strcmp(argv[i], "--fd") ? atoi(argv[i + 1]) : fd;
        d.dir = !strcmp(argv[i], "--dir") ? argv[i + 1] : d.dir;
        d.parent = !strcmp(argv[i], "--parent") ? atoi(argv[i + 1]) : d.parent;
    }
    if (fd < 0)
        return -1;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != d.parent)
        _exit(69);
    frame_conn_init(&d.conn, fd);
    FRAME_BODY(hello, Hello, hello);
    hello.version = FRAME_VERSION;
    FRAME(f, HELLO, hello, &hello);
    double_send(&d, &f);
    Weft__Rank__Frame *assign = double_hear(&d);
    d.rank = assign->assign->rank;
    double_obey(&d, assign->assign->job_text);
    _exit(0);
}
