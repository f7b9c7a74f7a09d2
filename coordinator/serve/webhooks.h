// SPDX-License-Identifier: Apache-2.0
// The receivers of notices: a name, and a URL that gets each notice as a POST of JSON. Only who starts the
// coordinator names URLs, since this host can reach what others cannot. A URL may hold a secret: it is in
// no log, message or answer, its receiver's name is.
//
// A thread of its own talks to all of them at once (libcurl), so that a server that hangs holds up
// nobody: neither the coordinator's loop nor the others. http and https alone, no redirect is followed,
// what a server answers is thrown away. Proxies are those of curl's environment: http_proxy, HTTPS_PROXY,
// ALL_PROXY, NO_PROXY. Inside coordinator/ only.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"
#include "coordinator/decide/words.h"

enum { WEBHOOKS_MAX = 16, WEBHOOK_URL_MAX = 2000 };
struct webhooks;

// `given` are NAME=URL, or NAME=@FILE of a file that holds a URL and that nobody else may read. A try
// takes `try_ms` at most, a third of it for the connection. ERR_INVALID, ERR_IO: what is wrong with which.
int webhooks_open(const char *const *given, int n, int try_ms, struct webhooks **out,
                  struct err *e);
// ERR_INVALID where webhooks_open would say so.
int webhooks_check(const char *const *given, int n, struct err *e);
const char *const *webhooks_names(const struct webhooks *w); // as many as were given
int webhooks_fd(const struct webhooks *w);                   // readable: answers are there
// The text is copied. PRE: there is a receiver of that name.
void webhooks_post(struct webhooks *w, const char *receiver, const char *id, const char *body);
struct webhook_answer {
    const char *receiver;
    char id[80];
    enum post_result result;
    char why[200]; // not taken: plain words
};
bool webhooks_next(struct webhooks *w, struct webhook_answer *out); // false: no more for now
void webhooks_close(struct webhooks *w); // at once, whatever a server does; null is fine
