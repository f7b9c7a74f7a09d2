// SPDX-License-Identifier: Apache-2.0
// A folder of safetensors files that others wrote: model.safetensors, or what
// model.safetensors.index.json says. Nothing in it is trusted: a name is no path, heads are parsed as
// shard files' are (ckpt/shard_file.h), and index and heads must say the same.
// Inside common/weights/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/json.h"
#include "common/base/map.h"
#include "common/ckpt/shard_file.h"

enum { FOREIGN_MAX_FILES = 900, FOREIGN_MAX_JSON = 64 << 20 };

struct foreign_stored {
    struct shard_slice slice; // name, type, shape, place
    int file;
    bool used; // the caller's mark
};
struct foreign_files {
    struct arena arena;
    int dirfd;
    char path[1000];
    int nfiles, files_cap, ntensors, tensors_cap;
    struct foreign_file {
        const char *name;
        int fd;
        uint64_t bytes;
    } * files;
    struct foreign_stored *tensors;
    struct map by_name;
    void *raw; // read buffer
    size_t raw_bytes;
};

// Errors name the file, and the tensor or the byte.
int foreign_open(struct foreign_files *f, const char *path, struct err *e);
void foreign_close(struct foreign_files *f); // a zeroed or closed one is fine
// A JSON file of the folder. ERR_NOTFOUND: there is none.
int foreign_json(struct foreign_files *f, const char *name, struct json **out, struct err *e);
struct foreign_stored *foreign_find(const struct foreign_files *f, const char *name); // or null
// Reads a box of a tensor that is seen in the dimensions of `view`, as f32.
int foreign_read(struct foreign_files *f, const struct foreign_stored *t, const struct shape *view,
                 const struct box *b, float *to, struct err *e);
