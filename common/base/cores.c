// SPDX-License-Identifier: Apache-2.0
// Usable cores; see cores.h. A group has its parents' quotas too, and a container may see its own
// group at the root of the mount, so every group on the way up is read.
#include "common/base/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/folder.h"

enum { GROUPS_MAX = 4096 };

// Microseconds of processor time in a period of so many; 0: any.
struct quota {
    long long used, period;
};

static struct quota read_quota(const char *group)
{
    char text[80], period[80], *rest;
    struct quota q = {0};
    if (!folder_read(group, "cpu.max", text, sizeof text, NULL)) { // "max 100000", "150000 100000"
        q.used = strtoll(text, &rest, 10);
        q.period = strtoll(rest, NULL, 10);
    } else if (!folder_read(group, "cpu.cfs_quota_us", text, sizeof text, NULL) &&
               !folder_read(group, "cpu.cfs_period_us", period, sizeof period, NULL)) {
        q.used = strtoll(text, NULL, 10); // -1: any
        q.period = strtoll(period, NULL, 10);
    }
    return q;
}

static int apply_quota(const char *group, int cores)
{
    struct quota q = read_quota(group);
    if (q.used <= 0 || q.period <= 0 || q.used / q.period >= cores)
        return cores;
    return q.used < q.period ? 1 : (int)(q.used / q.period);
}

// Applies the quotas of a group and of all above it. Shortens `path` to nothing.
static int apply_groups(const char *mount, char *path, int cores)
{
    char group[PATH_MAX];
    for (;;) {
        if ((size_t)snprintf(group, sizeof group, "%s%s", mount, path) < sizeof group)
            cores = apply_quota(group, cores);
        char *last = strrchr(path, '/');
        if (!last)
            return cores;
        *last = 0;
    }
}

static bool is_listed(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ','), at += at != NULL)
        if (!strncmp(at, name, n) && (!at[n] || at[n] == ','))
            return true;
    return false;
}

// A line is "NUMBER:CONTROLLERS:PATH"; version 2 names no controllers.
static int apply_line(const char *root, char *line, int cores)
{
    char mount[PATH_MAX], *names = strchr(line, ':');
    char *path = names ? strchr(names + 1, ':') : NULL;
    if (!path)
        return cores;
    *names++ = 0;
    *path++ = 0;
    if (*names && !is_listed(names, "cpu"))
        return cores;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, *names ? "/cpu" : "");
    return apply_groups(mount, path, cores);
}

int cores_within_quota(const char *root, int cores)
{
    char dir[PATH_MAX], text[GROUPS_MAX], *rest;
    snprintf(dir, sizeof dir, "%s/proc/self", root);
    if (folder_read(dir, "cgroup", text, sizeof text, NULL))
        return cores;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        cores = apply_line(root, line, cores);
    return cores;
}

// The kernel refuses a mask shorter than its own, and a cpu_set_t has 1,024 bits alone: this has room for
// as many cores as Linux knows on any machine.
int cores_usable(void)
{
    enum { CORES_MAX = 8192 };
    size_t bytes = CPU_ALLOC_SIZE(CORES_MAX);
    cpu_set_t *set = CPU_ALLOC(CORES_MAX);
    int n = 0;
    if (set && !sched_getaffinity(0, bytes, set))
        n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return cores_within_quota("", n > 0 ? n : 1);
}
