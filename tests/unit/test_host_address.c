// SPDX-License-Identifier: Apache-2.0
// What can be the address by which others reach a host, and that ranks hear those who call it, be it
// this machine's own or a NAT's that passes connections on.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/host_address.h"
#include "tests/unit/unit.h"

// Of a range for documents: no machine has it.
#define NAT_IPV4 "192.0.2.77"
#define NAT_IPV6 "2001:db8::77"

static void what_cannot_be_an_address_is_refused_with_why(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "is empty"},
        {"[]", "is empty"},
        {" ", "blank"},
        {"a b", "blank"},
        {"10.0.0.1\n", "blank"},
        {"host:77", "port"},
        {"10.0.0.1:77", "port"},
        {"[fd00::1]:77", "port"},
        {":77", "port"},
        {"999.1.1.1", "no IPv4 address"},
        {"10.1", "no IPv4 address"},
        {"1.2.3.4.5", "no IPv4 address"},
        {"fd00::zz", "no IPv6 address"},
        {"a:b:c", "no IPv6 address"},
        {"0.0.0.0", "no single host"},
        {"::", "no single host"},
        {"224.0.0.1", "no single host"},
        {"255.255.255.255", "no single host"},
        {"ff02::1", "no single host"},
        {"fe80::1", "no single host"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        if (host_address_check(bad[i].text, &e) != ERR_INVALID || !strstr(e.text, bad[i].why))
            fail_msg("'%s': %s", bad[i].text, e.text);
    }
}

static void an_overlong_name_is_refused(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(host_address_check(name, NULL), ERR_INVALID);
}

// Whether somebody who answers for names is there or not.
static void a_name_that_nobody_knows_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_not_equal(host_address_check("no-such-host.invalid", &e), 0);
    assert_non_null(strstr(e.text, "'no-such-host.invalid' does not resolve"));
}

static void addresses_and_known_names_pass_whosever_they_are(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1", "::1",    "[::1]",         "localhost",
                                       NAT_IPV4,    NAT_IPV6, "[" NAT_IPV6 "]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err e = {0};
        if (host_address_check(good[i], &e))
            fail_msg("'%s': %s", good[i], e.text);
    }
}

// Whether a call to this address of the machine reaches the listening socket.
static bool hears(int listener, const char *own, const char *called)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)atoi(strrchr(called, ':') + 1));
    assert_int_equal(inet_pton(AF_INET, own, &to.sin_addr), 1);
    int caller = socket(AF_INET, SOCK_STREAM, 0);
    bool connected = !connect(caller, (struct sockaddr *)&to, sizeof to);
    int guest = connected ? accept(listener, NULL, NULL) : -1;
    close(caller);
    if (guest >= 0)
        close(guest);
    return guest >= 0;
}

static int listen_for(const char *text, char called[HOST_PORT_MAX])
{
    struct err e = {0};
    int fd = -1;
    if (host_address_listen(text, 5, &fd, called, &e))
        fail_msg("%s: %s", text, e.text);
    return fd;
}

static void an_address_of_this_machine_is_listened_on_alone(void **state)
{
    (void)state;
    char called[HOST_PORT_MAX];
    int fd = listen_for("127.0.0.1:0", called);
    assert_int_equal(strncmp(called, "127.0.0.1:", 10), 0);
    assert_true(hears(fd, "127.0.0.1", called));
    assert_false(hears(fd, "127.0.0.2", called));
    close(fd);
}

static void an_address_of_a_nat_is_named_and_its_calls_are_heard_at_any_of_ours(void **state)
{
    (void)state;
    char called[HOST_PORT_MAX];
    int fd = listen_for(NAT_IPV4 ":0", called);
    assert_int_equal(strncmp(called, NAT_IPV4 ":", strlen(NAT_IPV4) + 1), 0);
    assert_int_not_equal(atoi(strrchr(called, ':') + 1), 0);
    assert_true(hears(fd, "127.0.0.1", called));
    assert_true(hears(fd, "127.0.0.2", called));
    close(fd);
}

static void an_ipv6_address_is_printed_in_brackets(void **state)
{
    (void)state;
    static const char *const texts[] = {NAT_IPV6 ":0", "[" NAT_IPV6 "]:0"};
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    if (probe < 0)
        skip(); // a machine without IPv6
    close(probe);
    for (int i = 0; i < 2; i++) {
        char called[HOST_PORT_MAX];
        int fd = listen_for(texts[i], called);
        assert_int_equal(strncmp(called, "[" NAT_IPV6 "]:", strlen(NAT_IPV6) + 3), 0);
        close(fd);
    }
}

static void a_port_that_is_taken_is_reported(void **state)
{
    (void)state;
    char called[HOST_PORT_MAX], again[HOST_PORT_MAX];
    struct err e = {0};
    int fd = listen_for("127.0.0.1:0", called), other = -1;
    assert_int_equal(host_address_listen(called, 5, &other, again, &e), ERR_IO);
    assert_non_null(strstr(e.text, "Address already in use"));
    assert_int_equal(other, -1);
    close(fd);
}

static void a_call_to_an_address_of_ours_arrives_and_one_to_nobodys_does_not(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(host_address_try("127.0.0.1", 5 * CLOCK_S, &e), 0);
    assert_int_equal(host_address_try(NAT_IPV4, CLOCK_S / 5, &e), ERR_PEER);
    assert_string_not_equal(e.text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_an_address_is_refused_with_why),
        cmocka_unit_test(an_overlong_name_is_refused),
        cmocka_unit_test(a_name_that_nobody_knows_is_refused),
        cmocka_unit_test(addresses_and_known_names_pass_whosever_they_are),
        cmocka_unit_test(an_address_of_this_machine_is_listened_on_alone),
        cmocka_unit_test(an_address_of_a_nat_is_named_and_its_calls_are_heard_at_any_of_ours),
        cmocka_unit_test(an_ipv6_address_is_printed_in_brackets),
        cmocka_unit_test(a_port_that_is_taken_is_reported),
        cmocka_unit_test(a_call_to_an_address_of_ours_arrives_and_one_to_nobodys_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
