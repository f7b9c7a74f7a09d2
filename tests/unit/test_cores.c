// SPDX-License-Identifier: Apache-2.0
// How many cores a process may use where control groups limit it, in folders that look like the
// system's; and the threads that a device gets of them.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cores.h"
#include "common/base/folder.h"
#include "common/job/threads.h"
#include "tests/unit/scratch.h"

static struct scratch top;

static void put(const char *dir, const char *name, const char *text)
{
    struct err e = {0};
    assert_int_equal(folder_make(scratch_path(&top, dir), &e), 0);
    assert_int_equal(folder_write(scratch_path(&top, dir), name, text, FOLDER_LOOSE, &e), 0);
}

static int make_top(void **state)
{
    (void)state;
    scratch_make(&top);
    return 0;
}

static int remove_top(void **state)
{
    (void)state;
    scratch_remove(&top);
    return 0;
}

static void expect_cores(int want, int cores)
{
    assert_int_equal(cores_within_quota(top.dir, cores), want);
}

static void without_groups_all_cores_count(void **state)
{
    (void)state;
    expect_cores(6, 6);
    put("proc/self", "cgroup", "0::/user\n");
    expect_cores(6, 6);
}

static void the_smallest_quota_on_the_way_up_counts(void **state)
{
    (void)state;
    put("proc/self", "cgroup", "0::/jobs/one\n");
    put("sys/fs/cgroup/jobs/one", "cpu.max", "max 100000\n");
    expect_cores(8, 8);
    put("sys/fs/cgroup/jobs", "cpu.max", "350000 100000\n");
    expect_cores(3, 8); // what is left below a whole core is nobody's
    expect_cores(2, 2);
    put("sys/fs/cgroup/jobs/one", "cpu.max", "50000 100000\n");
    expect_cores(1, 8);
    put("sys/fs/cgroup", "cpu.max", "200000 100000\n");
    put("sys/fs/cgroup/jobs/one", "cpu.max", "max 100000\n");
    expect_cores(2, 8);
}

static void the_older_groups_are_read_where_they_have_the_cpu(void **state)
{
    (void)state;
    put("proc/self", "cgroup", "5:memory:/m\n4:cpuset:/set\n2:cpu,cpuacct:/jobs\n0::/\n");
    put("sys/fs/cgroup/cpu/set", "cpu.cfs_quota_us", "100000\n"); // of another hierarchy's path
    put("sys/fs/cgroup/cpu/set", "cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/jobs", "cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/jobs", "cpu.cfs_period_us", "100000\n");
    expect_cores(8, 8);
    put("sys/fs/cgroup/cpu/jobs", "cpu.cfs_quota_us", "1200000\n");
    put("sys/fs/cgroup/cpu/jobs", "cpu.cfs_period_us", "250000\n");
    expect_cores(4, 8);
}

static void damaged_files_limit_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "::::\n", "0::\n", "no colons at all"};
    put("sys/fs/cgroup", "cpu.max", "100000");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put("proc/self", "cgroup", texts[i]);
        expect_cores(8, 8);
    }
    put("sys/fs/cgroup", "cpu.max", "100000 0");
    expect_cores(8, 8);
}

static void a_device_gets_its_share_of_the_cores_and_at_least_one(void **state)
{
    (void)state;
    assert_int_equal(threads_share(8, 2), 4);
    assert_int_equal(threads_share(7, 2), 3);
    assert_int_equal(threads_share(2, 4), 1);
    assert_int_equal(threads_share(0, 1), 1);  // a worker of old says none
    assert_int_equal(threads_share(-5, 1), 1); // whatever a worker says
    assert_int_equal(threads_share(INT32_MAX, 1), JOB_MAX_THREADS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_groups_all_cores_count, make_top, remove_top),
        cmocka_unit_test_setup_teardown(the_smallest_quota_on_the_way_up_counts, make_top,
                                        remove_top),
        cmocka_unit_test_setup_teardown(the_older_groups_are_read_where_they_have_the_cpu, make_top,
                                        remove_top),
        cmocka_unit_test_setup_teardown(damaged_files_limit_nothing, make_top, remove_top),
        cmocka_unit_test(a_device_gets_its_share_of_the_cores_and_at_least_one),
    };
    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
