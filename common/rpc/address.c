// SPDX-License-Identifier: Apache-2.0
// Addresses. See address.h.
#include "common/rpc/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static int parse_unix(struct address *a, const char *text, struct err *e)
{
    const char *path = text + strlen("unix:");
    if (path[0] != '/')
        return err_set(e, ERR_INVALID, "address '%s': a socket's path must be absolute", text);
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return err_set(e, ERR_INVALID, "address '%s': a socket's path has at most %zu characters",
                       text, sizeof((struct sockaddr_un *)NULL)->sun_path - 1);
    a->unix_socket = a->local = true;
    snprintf(a->host, sizeof a->host, "%s", path);
    snprintf(a->serve, sizeof a->serve, "%s", text);
    snprintf(a->dial, sizeof a->dial, "%s", text);
    return 0;
}

// Splits "HOST:PORT" and "[V6]:PORT".
static int split_host_port(struct address *a, const char *text, struct err *e)
{
    const char *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : 0;
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    bool bracketed = len > 2 && text[0] == '[' && text[len - 1] == ']';
    if (!len || !digits || digits > 5 || colon[1 + digits])
        return err_set(e, ERR_INVALID, "address '%s' is neither unix:/PATH nor HOST:PORT", text);
    a->port = atoi(colon + 1);
    if (a->port > 65535)
        return err_set(e, ERR_INVALID, "address '%s': the port is over 65535", text);
    if (bracketed)
        len -= 2;
    if (len >= sizeof a->host)
        return err_set(e, ERR_INVALID, "address: the host's name is too long");
    memcpy(a->host, text + bracketed, len);
    a->host[len] = 0;
    if (bracketed != (strchr(a->host, ':') != NULL))
        return err_set(e, ERR_INVALID, "address '%s': [ ] go around an IPv6 address", text);
    return 0;
}

static bool is_name(const char *host)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    return host[0] != '-' && strspn(host, allowed) == strlen(host);
}

int address_parse(struct address *a, const char *text, bool tls, struct err *e)
{
    *a = (struct address){0};
    if (!strncmp(text, "unix:", 5))
        return parse_unix(a, text, e);
    int rc = split_host_port(a, text, e);
    if (rc)
        return rc;
    // Without TLS a name must not be left to the resolver.
    if (!tls && !strcmp(a->host, "localhost"))
        strcpy(a->host, "127.0.0.1");
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, a->host, &v4) == 1) {
        a->local = ntohl(v4.s_addr) >> 24 == 127;
        snprintf(a->serve, sizeof a->serve, "%s:%d", a->host, a->port);
        snprintf(a->dial, sizeof a->dial, "ipv4:%s", a->serve);
    } else if (inet_pton(AF_INET6, a->host, &v6) == 1) {
        a->local = IN6_IS_ADDR_LOOPBACK(&v6);
        snprintf(a->serve, sizeof a->serve, "[%s]:%d", a->host, a->port);
        snprintf(a->dial, sizeof a->dial, "ipv6:%s", a->serve);
    } else if (is_name(a->host)) {
        a->local = !strcmp(a->host, "localhost");
        snprintf(a->serve, sizeof a->serve, "%s:%d", a->host, a->port);
        snprintf(a->dial, sizeof a->dial, "dns:///%s", a->serve);
    } else {
        return err_set(e, ERR_INVALID, "address '%s': not a host", text);
    }
    if (!tls && !a->local)
        return err_set(e, ERR_INVALID,
                       "address '%s': without TLS only Unix sockets and loopback addresses", text);
    return 0;
}
