// SPDX-License-Identifier: Apache-2.0
// The connections of a solo leader, turn by turn.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/rank/lead/rank_join.h"
#include "worker/rank/lead/solo_conns.h"

enum { CALLERS = 100 }; // more than may be here without a proof, fewer than may wait to be heard

static int call(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int count_closed(const int *fds)
{
    int n = 0;
    char byte;
    for (int i = 0; i < CALLERS; i++)
        n += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
    return n;
}

static void callers_who_never_pause_leave_the_leader_its_turn(void **state)
{
    struct assignment at = {.ranks = 2, .epoch = 1, .host = "here"};
    struct solo_conns_ops ops = {0};
    char dir[TEMP_FOLDER_MAX], path[TEMP_FOLDER_MAX + 8];
    int fds[CALLERS], listener, wake = eventfd(0, EFD_CLOEXEC), turns = 1;
    (void)state;
    assert_int_equal(temp_folder_make(dir, "conns"), 0);
    snprintf(path, sizeof path, "%s/sock", dir);
    assert_int_equal(join_listen_unix(path, &listener, NULL), 0);
    struct solo_conns *c = solo_conns_new(&at, listener, -1, &ops);
    for (int i = 0; i < CALLERS; i++)
        fds[i] = call(path);
    solo_conns_poll(c, wake, 0);
    assert_int_equal(count_closed(fds), 0); // those beyond the places have not been looked at
    for (int before = -1, now = 0; now != before || !now; turns++) {
        assert_true(turns < CALLERS);
        before = now;
        solo_conns_poll(c, wake, 0);
        now = count_closed(fds);
    }
    assert_in_range(count_closed(fds), 1, CALLERS - 1); // in the end they are turned away
    solo_conns_free(c);
    for (int i = 0; i < CALLERS; i++)
        close(fds[i]);
    close(wake);
    assert_int_equal(temp_folder_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_who_never_pause_leave_the_leader_its_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
