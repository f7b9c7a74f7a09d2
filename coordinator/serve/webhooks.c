// SPDX-License-Identifier: Apache-2.0
// Posts notices; see webhooks.h. The owner's thread puts posts into one list and takes answers from
// another; between the two curl's multi interface works on the thread here.
#include "coordinator/serve/webhooks.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/system.h"

enum { HEARD_MAX = 64 << 10 }; // of an answer's headers and body; the rest is cut off
enum { LOOK_MS = 60000 };      // nothing needs it: the thread is woken

struct post {
    struct list link;
    struct webhook_answer answer;
    const char *url;
    char *body;
    CURL *easy;
    size_t heard; // bytes of the answer
};
struct webhooks {
    int n, try_ms, fd;
    char *names[WEBHOOKS_MAX], *urls[WEBHOOKS_MAX];
    CURLM *multi;
    struct curl_slist *headers;
    pthread_t thread;
    bool runs;
    struct list open;     // of the thread alone: those under way
    pthread_mutex_t lock; // of what follows
    struct list given, answered;
    bool stops;
};

// ---- what is given ----

static int refuse_url(const char *name, const char *url, struct err *e)
{
    char *scheme = NULL, *host = NULL;
    CURLU *u = curl_url();
    bool ok = u && strlen(url) <= WEBHOOK_URL_MAX && !curl_url_set(u, CURLUPART_URL, url, 0) &&
              !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
              (!strcmp(scheme, "http") || !strcmp(scheme, "https")) &&
              !curl_url_get(u, CURLUPART_HOST, &host, 0) && *host;
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(u);
    return ok ? 0
              : err_set(
                    e, ERR_INVALID,
                    "--notify: what %s names is no URL of http:// or https:// (%d characters at "
                    "most)",
                    name, WEBHOOK_URL_MAX);
}

static int read_file(const char *name, const char *path, struct buf *url, struct err *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc;
    if (fd < 0)
        return err_errno(e, ERR_INVALID, "--notify: %s: %s", name, path);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        rc = err_set(e, ERR_INVALID, "--notify: %s: %s is no regular file", name, path);
    else if ((st.st_mode & 077) || (st.st_uid != geteuid() && st.st_uid))
        rc = err_set(e, ERR_INVALID,
                     "--notify: %s: %s holds a secret and is not this user's alone: chmod 600 it",
                     name, path);
    else
        rc = folder_read_fd(fd, path, WEBHOOK_URL_MAX + 2, url, e);
    close(fd);
    while (!rc && url->len && strchr(" \t\r\n", url->data[url->len - 1]))
        url->data[--url->len] = 0;
    if (!rc && strlen(buf_str(url)) != url->len)
        rc = err_set(e, ERR_INVALID, "--notify: %s: %s holds no text", name, path);
    return rc;
}

static int add_receiver(struct webhooks *w, const char *given, struct err *e)
{
    const char *equals = strchr(given, '=');
    struct buf url = {0};
    char name[64];
    if (!equals || equals - given >= (int)sizeof name)
        return err_set(e, ERR_INVALID, "--notify takes NAME=URL, or NAME=@FILE");
    snprintf(name, sizeof name, "%.*s", (int)(equals - given), given);
    if (!folder_name_ok(name))
        return err_set(e, ERR_INVALID, "--notify: a name has 1 to 63 of a-z 0-9 . _ -");
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->names[i], name))
            return err_set(e, ERR_INVALID, "--notify: there is a receiver %s already", name);
    if (w->n == WEBHOOKS_MAX)
        return err_set(e, ERR_INVALID, "--notify: there are at most %d", WEBHOOKS_MAX);
    bool reads = equals[1] == '@';
    buf_puts(&url, reads ? "" : equals + 1);
    int rc = reads ? read_file(name, equals + 2, &url, e) : 0;
    rc = rc ? rc : refuse_url(name, buf_str(&url), e);
    if (!rc) {
        w->names[w->n] = heap_strdup(name);
        w->urls[w->n++] = heap_strdup(buf_str(&url));
    }
    buf_clear(&url);
    return rc;
}

// ---- one post, on the thread ----

// Of headers and of the body. Another number than was given ends the answer there.
static size_t count_heard(char *data, size_t size, size_t n, void *ctx)
{
    struct post *p = ctx;
    (void)data;
    p->heard += size * n;
    return p->heard <= HEARD_MAX ? size * n : 0;
}

static bool set_options(const struct webhooks *w, struct post *p)
{
    CURL *c = p->easy;
    return !curl_easy_setopt(c, CURLOPT_URL, p->url) &&
           !curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") &&
           !curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L) &&
           !curl_easy_setopt(c, CURLOPT_POSTFIELDS, p->body) &&
           !curl_easy_setopt(c, CURLOPT_HTTPHEADER, w->headers) &&
           !curl_easy_setopt(c, CURLOPT_USERAGENT, "weft/" WEFT_VERSION) &&
           !curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)w->try_ms / 3) &&
           !curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)w->try_ms) &&
           !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, count_heard) &&
           !curl_easy_setopt(c, CURLOPT_WRITEDATA, p) &&
           !curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, count_heard) &&
           !curl_easy_setopt(c, CURLOPT_HEADERDATA, p) &&
           !curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L) &&
           !curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L) && // a name's look-up may hang
           !curl_easy_setopt(c, CURLOPT_PRIVATE, p);
}

static void judge(struct post *p, CURLcode code)
{
    struct webhook_answer *a = &p->answer;
    long status = 0;
    curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    bool cut = code == CURLE_WRITE_ERROR && p->heard > HEARD_MAX; // its status counts
    bool later = status >= 500 || status == 408 || status == 425 || status == 429;
    a->result = POST_FAILED;
    if (code && !cut)
        snprintf(a->why, sizeof a->why, "%s", curl_easy_strerror(code));
    else if (status >= 200 && status < 300)
        a->result = POST_TAKEN;
    else if (status >= 300 && status < 400)
        snprintf(a->why, sizeof a->why, "it answered %ld, and a redirect is not followed", status);
    else
        snprintf(a->why, sizeof a->why, "it answered %ld", status);
    if ((!code || cut) && a->result == POST_FAILED && status >= 300 && !later)
        a->result = POST_REFUSED;
}

static void answer(struct webhooks *w, struct post *p)
{
    pthread_mutex_lock(&w->lock);
    list_remove(&p->link);
    list_append(&w->answered, &p->link);
    pthread_mutex_unlock(&w->lock);
    (void)eventfd_write(w->fd, 1);
}

static void begin(struct webhooks *w, struct post *p)
{
    p->easy = curl_easy_init();
    if (p->easy && set_options(w, p) && !curl_multi_add_handle(w->multi, p->easy))
        return;
    snprintf(p->answer.why, sizeof p->answer.why, "there is no memory to send it");
    p->answer.result = POST_FAILED;
    curl_easy_cleanup(p->easy);
    p->easy = NULL;
    answer(w, p);
}

static void finish(struct webhooks *w, CURL *easy, CURLcode code)
{
    char *ctx = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &ctx);
    struct post *p = (struct post *)(void *)ctx;
    judge(p, code);
    curl_multi_remove_handle(w->multi, easy);
    curl_easy_cleanup(easy);
    p->easy = NULL;
    answer(w, p);
}

// Returns false when it is to stop.
static bool take_given(struct webhooks *w)
{
    pthread_mutex_lock(&w->lock);
    bool stops = w->stops;
    list_for_each (it, &w->given) {
        list_remove(it);
        list_append(&w->open, it);
    }
    pthread_mutex_unlock(&w->lock);
    return !stops;
}

static void *talk(void *arg)
{
    struct webhooks *w = arg;
    int running, left;
    while (take_given(w)) {
        list_for_each (it, &w->open)
            if (!list_entry(it, struct post, link)->easy)
                begin(w, list_entry(it, struct post, link));
        curl_multi_perform(w->multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(w->multi, &left));)
            if (m->msg == CURLMSG_DONE)
                finish(w, m->easy_handle, m->data.result);
        curl_multi_poll(w->multi, NULL, 0, LOOK_MS, NULL);
    }
    return NULL;
}

// ---- the owner's thread ----

void webhooks_post(struct webhooks *w, const char *receiver, const char *id, const char *body)
{
    int i = 0;
    while (i < w->n && strcmp(w->names[i], receiver) != 0)
        i++;
    PRE(i < w->n);
    struct post *p = heap_alloc(sizeof *p);
    p->url = w->urls[i];
    p->body = heap_strdup(body);
    p->answer.receiver = w->names[i];
    snprintf(p->answer.id, sizeof p->answer.id, "%s", id);
    pthread_mutex_lock(&w->lock);
    list_append(&w->given, &p->link);
    pthread_mutex_unlock(&w->lock);
    curl_multi_wakeup(w->multi);
}

static void free_post(struct post *p)
{
    list_remove(&p->link);
    free(p->body);
    free(p);
}

bool webhooks_next(struct webhooks *w, struct webhook_answer *out)
{
    eventfd_t ignored;
    (void)eventfd_read(w->fd, &ignored);
    pthread_mutex_lock(&w->lock);
    bool any = !list_empty(&w->answered);
    if (any) {
        struct post *p = list_entry(w->answered.next, struct post, link);
        *out = p->answer;
        free_post(p);
    }
    pthread_mutex_unlock(&w->lock);
    return any;
}

const char *const *webhooks_names(const struct webhooks *w)
{
    return (const char *const *)w->names;
}

int webhooks_fd(const struct webhooks *w)
{
    return w->fd;
}

static int start_thread(struct webhooks *w, struct err *e)
{
    sigset_t pipe, before;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) || !(w->multi = curl_multi_init()) ||
        !(w->headers = curl_slist_append(NULL, "Content-Type: application/json")))
        return err_set(e, ERR_IO, "--notify: there is no memory for it");
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->fd < 0)
        return err_errno(e, ERR_IO, "--notify: cannot make an eventfd");
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE); // of a server that has gone
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    w->runs = !pthread_create(&w->thread, NULL, talk, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return w->runs ? 0 : err_set(e, ERR_IO, "--notify: cannot start its thread");
}

static int read_given(const char *const *given, int n, struct webhooks **out, struct err *e)
{
    struct webhooks *w = heap_alloc(sizeof *w);
    int rc = 0;
    *out = w;
    w->fd = -1;
    list_init(&w->given);
    list_init(&w->open);
    list_init(&w->answered);
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < n && !rc; i++)
        rc = add_receiver(w, given[i], e);
    return rc;
}

int webhooks_check(const char *const *given, int n, struct err *e)
{
    struct webhooks *w;
    int rc = read_given(given, n, &w, e);
    webhooks_close(w);
    return rc;
}

int webhooks_open(const char *const *given, int n, int try_ms, struct webhooks **out, struct err *e)
{
    struct webhooks *w;
    int rc = read_given(given, n, &w, e);
    w->try_ms = try_ms;
    if (!rc)
        rc = start_thread(w, e);
    if (rc)
        webhooks_close(w);
    *out = rc ? NULL : w;
    return rc;
}

void webhooks_close(struct webhooks *w)
{
    if (!w)
        return;
    struct list *const lists[] = {&w->given, &w->open, &w->answered};
    if (w->runs) {
        pthread_mutex_lock(&w->lock);
        w->stops = true;
        pthread_mutex_unlock(&w->lock);
        curl_multi_wakeup(w->multi);
        pthread_join(w->thread, NULL);
    }
    list_for_each (it, &w->open)
        if (list_entry(it, struct post, link)->easy) {
            curl_multi_remove_handle(w->multi, list_entry(it, struct post, link)->easy);
            curl_easy_cleanup(list_entry(it, struct post, link)->easy);
        }
    for (int i = 0; i < 3; i++)
        list_for_each (it, lists[i])
            free_post(list_entry(it, struct post, link));
    curl_multi_cleanup(w->multi);
    curl_slist_free_all(w->headers);
    system_close(&w->fd);
    for (int i = 0; i < w->n; i++) {
        free(w->names[i]);
        free(w->urls[i]);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}
