// SPDX-License-Identifier: Apache-2.0
// Loads the backend's libraries and warms them up on a thread of its own, while a starting rank waits
// for the disk or for rank 0. Nothing depends on it: what is not ready in time is made when it is
// needed, and a backend that cannot be loaded is reported where it is needed.
// Inside worker/rank/ only.
#pragma once

struct warm;

struct warm *warm_start(const char *backend); // null: there is no thread
// One of them before the process ends; null is fine.
void warm_join(struct warm *w);
void warm_leave(struct warm *w); // by _exit, which waits for no driver
