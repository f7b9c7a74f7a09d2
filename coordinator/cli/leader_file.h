// SPDX-License-Identifier: Apache-2.0
// How the agents of an allocation find their leader: a file that it writes beside the job's folder,
// CKPT/.weft/NAME.leader, 0600 in a folder of this user's own.
//
//   weft leader 1
//   allocation slurm 71.0 start 0      this start of the whole; empty: nobody has a word for it
//   id 32 hex digits                   of this leader
//   token …                            with which an agent joins (rpc/tls_ca.h)
//   address HOST:PORT                  one line for each by which it may be reached, best first
//   mac 64 hex digits                  of all above
//   ended 0 64 hex digits              appended at the end: its exit code, the mac of "ended 0" and id
//
// The mac is HMAC-SHA256 under the secret, the text of the file that WEFT_SECRET_FILE names, which all of
// them have (of Kubernetes, a Secret). Then the token is sealed with it too, so that who reads or
// writes the storage joins nothing and leads nobody, and owner and mode of the file do not matter. .weft
// is no link in either case: what is written lies in that folder and nowhere else.
// Without a secret the mac only shows a torn file, and the file must be this user's alone. The end is
// appended, not renamed into place: network file systems show it to who opens the file from then on.
// Inside coordinator/cli/ only.
#pragma once
#include "common/base/err.h"
#include "common/base/id.h"
#include "common/rpc/tls_ca.h"

enum {
    LEADER_ADDRESSES = 16,
    LEADER_ADDRESS = 280,
    LEADER_SECRET_MIN = 16,
    LEADER_SECRET_MAX = 4096
};
struct leader_file {
    char allocation[128], id[ID_LEN], token[TLS_TOKEN_MAX];
    char address[LEADER_ADDRESSES][LEADER_ADDRESS];
    int naddresses;
    int ended; // −1: not yet
};
struct leader_secret {
    char text[LEADER_SECRET_MAX + 1]; // "": there is none
};

// Reads the file that WEFT_SECRET_FILE names; without the variable there is no secret. ERR_INVALID: it
// cannot be read, or is too short or too long.
int leader_secret_read(struct leader_secret *out, struct err *e);

// `root` is the checkpoint root; both make nothing that outlives a failure but the folder .weft.
int leader_file_write(const char *root, const char *name, const struct leader_secret *secret,
                      const struct leader_file *f, struct err *e);
// Says how it ended, if the file is still that leader's.
int leader_file_end(const char *root, const char *name, const struct leader_secret *secret,
                    const char *id, int code, struct err *e);
// ERR_NOTFOUND: there is none. ERR_INVALID: it, or its folder, is not this user's alone. ERR_DATA: it is
// no such file, is torn, or was written with another secret.
int leader_file_read(const char *root, const char *name, const struct leader_secret *secret,
                     struct leader_file *out, struct err *e);

// Text of it, both ways, for tests.
struct buf;
void leader_file_print(const struct leader_file *f, const struct leader_secret *secret,
                       struct buf *out);
int leader_file_parse(const char *text, const struct leader_secret *secret, struct leader_file *out,
                      struct err *e);
