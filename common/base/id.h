// SPDX-License-Identifier: Apache-2.0
// What names jobs, hosts, clusters, attempts, requests and runs: 32 hex digits.
#pragma once

enum { ID_LEN = 33 }; // with the zero at the end
