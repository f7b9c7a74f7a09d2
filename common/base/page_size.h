// SPDX-License-Identifier: Apache-2.0
// The pages in which the kernel hands out memory, on the machines that weft runs on.
#pragma once

enum { SMALL_PAGE = 4096, HUGE_PAGE = 2 * 1024 * 1024 };
