// SPDX-License-Identifier: Apache-2.0
// Request ids of mutating calls. The coordinator answers a repeated id with its first answer for
// 24 hours, so a caller that was killed between asking and hearing repeats the id, and the
// deed is done once. Inside coordinator/cli/ only.
//
// submit keeps its id in a file from before the call until after the answer was printed:
//
//   $XDG_STATE_HOME/weft/submit/<sha256 of address and resolved job>[.N]   32 hex digits, newline
//
// Whoever uses it holds a lock on it, so two submits at once are two jobs and take two files; one
// that finds a file without a living owner repeats what was begun there. A file older than 23 hours
// counts for nothing.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"
#include "common/base/id.h"

struct kept_request {
    char id[ID_LEN];
    bool again; // an earlier process began it and did not hear the answer
    int fd;     // of the file; -1 if the id is not kept
    char path[512];
};

void request_random(char id[ID_LEN]);
// Finds or makes the id of this request. After an error the id is good, but not kept in a file.
int request_begin(struct kept_request *r, const char *address, const char *text, struct err *e);
void request_end(struct kept_request *r); // the answer was printed: removes the file
