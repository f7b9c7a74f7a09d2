// SPDX-License-Identifier: Apache-2.0
// See host_address.h.
#include "common/base/host_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"

// ---- what can be one ----

static bool is_ipv6(const char *text)
{
    char bare[HOST_ADDRESS_MAX];
    struct in6_addr a;
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(text, "%"), text); // without the interface
    return inet_pton(AF_INET6, bare, &a) == 1;
}

static bool is_ipv4(const char *text)
{
    struct in_addr a;
    return inet_pton(AF_INET, text, &a) == 1;
}

// "HOST:77" or "[HOST]:77".
static bool has_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    bool only = colon && (strchr(text, ':') == colon || (*text == '[' && colon[-1] == ']'));
    return only && strspn(colon + 1, "0123456789") == strlen(colon + 1);
}

static bool has_blank(const char *text)
{
    for (const char *c = text; *c; c++)
        if (isspace((unsigned char)*c) || iscntrl((unsigned char)*c))
            return true;
    return false;
}

// Returns what is wrong with the form of an address without brackets, or null.
static const char *find_flaw(const char *text)
{
    if (!*text)
        return "is empty";
    if (has_blank(text))
        return "has a blank in it";
    if (has_port(text))
        return "has a port: ranks choose their own";
    if (strchr(text, ':'))
        return is_ipv6(text) ? NULL : "is no IPv6 address";
    if (strspn(text, "0123456789.") == strlen(text) && !is_ipv4(text))
        return "is no IPv4 address";
    return NULL;
}

// Whether an address means no single host.
static bool is_nobodys(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        uint32_t n = ntohl(in.sin_addr.s_addr);
        return n >> 24 == 0 || IN_MULTICAST(n) || n == INADDR_BROADCAST;
    }
    struct sockaddr_in6 in6;
    memcpy(&in6, a, sizeof in6);
    bool of_some_link = IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr) && !in6.sin6_scope_id;
    return IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr) || IN6_IS_ADDR_MULTICAST(&in6.sin6_addr) ||
           of_some_link;
}

// Copies what stands in a pair of brackets, or the whole text where there is none.
static void strip_brackets(const char *text, char *out, size_t size)
{
    size_t len = strlen(text);
    bool both = len >= 2 && text[0] == '[' && text[len - 1] == ']';
    snprintf(out, size, "%.*s", (int)(both ? len - 2 : len), text + both);
}

static int resolve_host(const char *host, const char *port, struct addrinfo **out, struct err *e)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int code = getaddrinfo(host, port, &want, out);
    if (!code)
        return 0;
    return err_set(e, code == EAI_AGAIN ? ERR_IO : ERR_INVALID,
                   "the name '%s' does not resolve: %s", host, gai_strerror(code));
}

int host_address_check(const char *text, struct err *e)
{
    char host[HOST_ADDRESS_MAX];
    struct addrinfo *found;
    if (strlen(text) >= sizeof host)
        return err_set(e, ERR_INVALID, "'%.40s…' is too long for an address", text);
    strip_brackets(text, host, sizeof host);
    const char *flaw = find_flaw(host);
    if (flaw)
        return err_set(e, ERR_INVALID, "'%s' %s", text, flaw);
    int rc = resolve_host(host, "0", &found, e);
    if (rc)
        return rc;
    if (is_nobodys(found->ai_addr))
        rc = err_set(e, ERR_INVALID, "'%s' is the address of no single host", text);
    freeaddrinfo(found);
    return rc;
}

// ---- listening ----

static int listen_at(const struct sockaddr *at, socklen_t len, int backlog)
{
    int one = 1;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
        !bind(fd, at, len) && !listen(fd, backlog))
        return fd;
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return -1;
}

// Listens on all addresses of the family of one, with its port.
static int listen_everywhere(const struct addrinfo *like, int backlog)
{
    struct sockaddr_storage at = {0};
    memcpy(&at, like->ai_addr, like->ai_addrlen);
    if (like->ai_family == AF_INET) {
        ((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_ANY);
    } else {
        ((struct sockaddr_in6 *)&at)->sin6_addr = in6addr_any;
        ((struct sockaddr_in6 *)&at)->sin6_scope_id = 0;
    }
    return listen_at((const struct sockaddr *)&at, like->ai_addrlen, backlog);
}

// Listens on the first of these that is this machine's, else everywhere for the first; *which is
// the one that callers call.
static int listen_for(const struct addrinfo *list, int backlog, const struct addrinfo **which)
{
    const struct addrinfo *foreign = NULL;
    int fd = -1, why = 0;
    for (const struct addrinfo *it = list; it && fd < 0; it = it->ai_next) {
        *which = it;
        fd = listen_at(it->ai_addr, it->ai_addrlen, backlog);
        if (fd < 0 && errno == EADDRNOTAVAIL)
            foreign = foreign ? foreign : it;
        else if (fd < 0)
            why = why ? why : errno;
    }
    if (fd >= 0)
        return fd;
    if (foreign) {
        *which = foreign;
        return listen_everywhere(foreign, backlog);
    }
    errno = why;
    return -1;
}

// Writes the address that callers call, with the port on which the socket listens.
static int print_address(int fd, const struct addrinfo *called, char *out, struct err *e)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    char host[64], port[8];
    if (getsockname(fd, (struct sockaddr *)&at, &len))
        return err_errno(e, ERR_IO, "cannot find out on which port it listens");
    if (getnameinfo((const struct sockaddr *)&at, len, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV) ||
        getnameinfo(called->ai_addr, called->ai_addrlen, host, sizeof host, NULL, 0,
                    NI_NUMERICHOST))
        return err_set(e, ERR_IO, "cannot write its address");
    snprintf(out, HOST_PORT_MAX, called->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

static int split_port(const char *text, char *host, const char **port, struct err *e)
{
    char with_brackets[HOST_ADDRESS_MAX + 2];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= HOST_ADDRESS_MAX)
        return err_set(e, ERR_INVALID, "'%s' is not HOST:PORT", text);
    snprintf(with_brackets, sizeof with_brackets, "%.*s", (int)(colon - text), text);
    strip_brackets(with_brackets, host, HOST_ADDRESS_MAX);
    *port = colon + 1;
    return 0;
}

int host_address_listen(const char *text, int backlog, int *fd, char out[HOST_PORT_MAX],
                        struct err *e)
{
    char host[HOST_ADDRESS_MAX];
    const char *port = NULL;
    struct addrinfo *list = NULL;
    const struct addrinfo *called = NULL;
    int rc = split_port(text, host, &port, e);
    rc = rc ? rc : resolve_host(host, port, &list, e);
    if (rc)
        return rc;
    *fd = listen_for(list, backlog, &called);
    if (*fd < 0)
        rc = err_errno(e, ERR_IO, "cannot listen on %s", text);
    else if ((rc = print_address(*fd, called, out, e))) {
        close(*fd);
        *fd = -1;
    }
    freeaddrinfo(list);
    return rc;
}

// ---- trying ----

static bool parse_called(const char *called, struct addrinfo **out)
{
    char host[HOST_ADDRESS_MAX];
    const char *port;
    return !split_port(called, host, &port, NULL) && !resolve_host(host, port, out, NULL);
}

// Whether the socket can be read or written in time.
static bool wait_for(int fd, short events, int64_t until_ns)
{
    struct pollfd p = {fd, events, 0};
    return poll(&p, 1, deadline_wait_ms(until_ns, clock_mono_ns())) == 1;
}

// Returns 0, or the errno of what went wrong.
static int call_own(int listener, const struct addrinfo *to, int64_t until_ns)
{
    int error = 0;
    socklen_t size = sizeof error;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS)
        error = errno;
    else if (!wait_for(fd, POLLOUT, until_ns))
        error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
        error = errno;
    if (!error && !wait_for(listener, POLLIN, until_ns))
        error = ETIMEDOUT; // somebody else took the call
    close(fd);
    return error;
}

int host_address_try(const char *text, int64_t wait_ns, struct err *e)
{
    char with_port[HOST_ADDRESS_MAX + 2], called[HOST_PORT_MAX];
    struct addrinfo *to = NULL;
    int fd, error = EINVAL;
    snprintf(with_port, sizeof with_port, "%s:0", text);
    int rc = host_address_listen(with_port, 1, &fd, called, e);
    if (rc)
        return rc;
    if (parse_called(called, &to))
        error = call_own(fd, to, clock_mono_ns() + wait_ns);
    if (to)
        freeaddrinfo(to);
    close(fd);
    return error ? err_set(e, ERR_PEER, "%s", strerror(error)) : 0;
}
