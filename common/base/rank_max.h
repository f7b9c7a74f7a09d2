// SPDX-License-Identifier: Apache-2.0
// How many ranks an attempt may have, and so how many devices a job may run on: each rank holds a
// connection to every other one, and its mapped page. A plan may be of any size.
#pragma once

enum { RANK_MAX = 1024 };
