// SPDX-License-Identifier: Apache-2.0
// How many cores this process may use: those that it may run on, but no more than the quotas of
// processor time of its control groups come to. What is left below a whole core is not counted.
#pragma once

int cores_usable(void); // at least 1
// What the groups named in ROOT/proc/self/cgroup leave of so many cores, by the files beneath
// ROOT/sys/fs/cgroup, of either version; at least 1. ROOT is "" but in tests.
int cores_within_quota(const char *root, int cores);
