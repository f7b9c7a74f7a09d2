// SPDX-License-Identifier: Apache-2.0
// A folder of small files of our own. It is made together with the folders above it, and its files
// are written whole or not at all. Checkpoints have acts of their own (common/ckpt/store.h).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/base/err.h"

// Makes the folder (0700) and those above it (0755) that are not there. ERR_INVALID: it cannot be.
int folder_make(const char *path, struct err *e);

// Refuses (ERR_INVALID; ERR_IO: it is none) a folder that is not this user's, or that others may write
// to: what lies in it may be anybody's. `may_link`: a link to such a folder will do.
int folder_check_own(const char *path, bool may_link, struct err *e);
// Makes it (0700) in a folder that is there, or refuses as folder_check_own does one that is not ours.
int folder_make_own(const char *path, struct err *e);
// A descriptor of the folder ABOVE/name, which is no link; `own`: what folder_check_own refuses is
// refused too. Who opens what lies in it by this descriptor is led nowhere else by whoever renames
// folders meanwhile. ERR_NOTFOUND: it is not there.
int folder_open(const char *above, const char *name, bool own, int *fd, struct err *e);

// Finds where a user keeps NAME ("weft/submit"): in the folder that a variable of XDG names
// ("XDG_STATE_HOME"), which counts only with an absolute path, else in HOME's `usual` one
// (".local/state"). ERR_NOTFOUND: there is neither; ERR_INVALID: too long. Makes nothing.
int folder_find_home(const char *variable, const char *usual, const char *name, char *out,
                     size_t size, struct err *e);
// Finds where a daemon (`coordinator`, `worker`) keeps its state where nobody says: /var/lib/weft/NAME
// for root, else weft/NAME in XDG_STATE_HOME or in ~/.local/state. ERR_INVALID: nowhere.
int folder_find_state(const char *name, char *out, size_t size, struct err *e);

// Removes the files in the folder, as many as it can, and then the folder. If other folders are in
// it, they and it stay.
void folder_remove(const char *path);

// Whether a name of a job or folder has 1 to 63 of a-z 0-9 . _ - and starts with a letter or digit.
bool folder_name_ok(const char *name);

enum folder_lasting { FOLDER_LOOSE, FOLDER_DURABLE }; // loose: a power loss may take it
// DIR/name appears whole, mode 0600, and replaces what was there.
int folder_write(const char *dir, const char *name, const char *text, enum folder_lasting lasting,
                 struct err *e);
// The same of bytes, which may hold zeros, and with another mode, of which umask takes its part.
int folder_write_bytes(const char *dir, const char *name, const void *bytes, size_t len,
                       mode_t mode, enum folder_lasting lasting, struct err *e);
// The same; `dir` starts at dirfd.
int folder_write_at(int dirfd, const char *dir, const char *name, const void *bytes, size_t len,
                    mode_t mode, enum folder_lasting lasting, struct err *e);
// Whether that file could be written now, for who is about to work for long.
int folder_check_write(const char *dir, const char *name, struct err *e);
int folder_sync(const char *path, struct err *e); // the names in it are durable
// At most size − 1 bytes of it; ERR_NOTFOUND when it is not there.
int folder_read(const char *dir, const char *name, char *out, size_t size, struct err *e);
// Appends a file of at most `most` bytes to `out`. `path` starts at dirfd, which may be AT_FDCWD. A
// pipe is read to its end. ERR_NOTFOUND; ERR_LIMIT: it is longer; ERR_DATA: it is a directory or,
// with `regular`, anything else than a regular file; ERR_IO. errno says why.
int folder_read_whole(int dirfd, const char *path, bool regular, size_t most, struct buf *out,
                      struct err *e);
// The same of a descriptor to its end, which messages call `name`. It stays open.
int folder_read_fd(int fd, const char *name, size_t most, struct buf *out, struct err *e);

// DIR/lock, flocked as long as *fd is open; its text is the holder's pid. The folder must be our own
// (folder_check_own): who locks it believes what lies there. ERR_EXISTS: another process has it, which
// the message names; ERR_INVALID: it cannot be made, or the folder is not ours alone.
int folder_lock(const char *dir, int *fd, struct err *e);
