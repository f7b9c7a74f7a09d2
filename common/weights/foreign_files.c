// SPDX-License-Identifier: Apache-2.0
// Folders of foreign safetensors files. See foreign_files.h.
#include "common/weights/foreign_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/system.h"
#include "common/weights/half.h"

static const char SINGLE[] = "model.safetensors", INDEX[] = "model.safetensors.index.json";

int foreign_json(struct foreign_files *f, const char *name, struct json **out, struct err *e)
{
    struct buf text = {0};
    int rc = folder_read_whole(f->dirfd, name, true, FOREIGN_MAX_JSON, &text, e);
    if (!rc && json_parse(&f->arena, buf_str(&text), text.len, out, e)) {
        err_wrap(e, "%s", name);
        rc = e ? (e->code = ERR_DATA) : ERR_DATA;
    }
    buf_clear(&text);
    return rc;
}

struct foreign_stored *foreign_find(const struct foreign_files *f, const char *name)
{
    struct foreign_stored *t = map_get(&f->by_name, name);
    return t;
}

// ---- files ---------------------------------------------------------------------------------------

// A file's name, of this folder and no other.
static bool is_plain_name(const char *name)
{
    size_t n = strlen(name);
    return n > 12 && n < 200 && *name != '.' && !strchr(name, '/') &&
           strcmp(name + n - 12, ".safetensors") == 0;
}

static int read_head(struct foreign_files *f, int file, struct shard_plan *plan, struct err *e)
{
    struct stream s = {0};
    struct hash128 digest;
    int rc = stream_open(&s, f->dirfd, f->files[file].name, e);
    rc = rc ? rc
            : shard_read_head(&f->arena, &s, f->files[file].bytes, SHARD_FOREIGN, plan, &digest, e);
    stream_close(&s, NULL);
    return rc;
}

// Opens a file and takes the tensors of its head.
static int open_file(struct foreign_files *f, const char *name, struct err *e)
{
    struct shard_plan plan = {0};
    struct stat st;
    f->files = arena_grow(&f->arena, f->files, sizeof *f->files, f->nfiles, &f->files_cap);
    struct foreign_file *file = &f->files[f->nfiles];
    *file = (struct foreign_file){.name = name,
                                  .fd = openat(f->dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    int rc = 0;
    if (file->fd < 0 || fstat(file->fd, &st)) {
        rc = err_errno(e, errno == ENOENT ? ERR_DATA : ERR_IO, "cannot open it");
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_DATA, "it is no file");
    } else {
        file->bytes = (uint64_t)st.st_size;
    }
    f->nfiles++;
    if (!rc)
        rc = read_head(f, f->nfiles - 1, &plan, e);
    for (int i = 0; i < plan.n && !rc; i++) {
        struct foreign_stored *t;
        f->tensors =
            arena_grow(&f->arena, f->tensors, sizeof *f->tensors, f->ntensors, &f->tensors_cap);
        t = &f->tensors[f->ntensors++];
        *t = (struct foreign_stored){plan.slices[i], f->nfiles - 1, false};
        if (!*t->slice.name)
            rc = err_set(e, ERR_DATA, "a tensor without a name");
    }
    if (rc)
        err_wrap(e, "%s", name);
    return rc;
}

// The table by names, once the array of tensors stays where it is.
static int name_tensors(struct foreign_files *f, struct err *e)
{
    for (int i = 0; i < f->ntensors; i++) {
        struct foreign_stored *t = &f->tensors[i], *other = map_put(&f->by_name, t->slice.name, t);
        if (other)
            return err_set(e, ERR_DATA, "tensor '%s' is in %s and in %s", t->slice.name,
                           f->files[other->file].name, f->files[t->file].name);
    }
    return 0;
}

// ---- the index -----------------------------------------------------------------------------------

static int open_indexed(struct foreign_files *f, const struct json *index, struct err *e)
{
    const struct json *names;
    struct map files = {0};
    int rc = json_get_object(index, "weight_map", &names, e);
    for (const struct json *v = rc ? NULL : names->first; v && !rc; v = v->next) {
        if (v->type != JSON_STRING || !is_plain_name(v->string))
            rc = err_set(e, ERR_DATA, "byte %zu: '%.100s' of tensor '%.200s' is no name of a file",
                         v->offset, v->type == JSON_STRING ? v->string : "", v->key);
        else if (!map_get(&files, v->string) && f->nfiles == FOREIGN_MAX_FILES)
            rc = err_set(e, ERR_LIMIT, "more than %d files", FOREIGN_MAX_FILES);
        else if (!map_put(&files, v->string, f))
            rc = open_file(f, v->string, e);
    }
    map_clear(&files);
    if (!rc)
        rc = name_tensors(f, e);
    for (const struct json *v = rc ? NULL : names->first; v && !rc; v = v->next) {
        const struct foreign_stored *t = foreign_find(f, v->key);
        if (!t || strcmp(f->files[t->file].name, v->string) != 0)
            rc = err_set(e, ERR_DATA, "byte %zu: tensor '%.200s' is not in %s", v->offset, v->key,
                         v->string);
    }
    if (!rc && names->count != f->ntensors)
        rc = err_set(e, ERR_DATA, "it names %d tensors, and the files have %d", names->count,
                     f->ntensors);
    if (rc)
        err_wrap(e, "%s", INDEX);
    return rc;
}

int foreign_open(struct foreign_files *f, const char *path, struct err *e)
{
    struct json *index;
    *f = (struct foreign_files){.dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    snprintf(f->path, sizeof f->path, "%s", path);
    if (f->dirfd < 0)
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s", path);
    int rc;
    if (!faccessat(f->dirfd, SINGLE, F_OK, AT_SYMLINK_NOFOLLOW)) {
        rc = open_file(f, SINGLE, e);
        rc = rc ? rc : name_tensors(f, e);
    } else {
        rc = foreign_json(f, INDEX, &index, e);
        if (rc == ERR_NOTFOUND)
            rc = err_set(e, ERR_NOTFOUND,
                         "there is no %s and no %s; of a pytorch_model.bin save_pretrained() of "
                         "transformers makes one",
                         SINGLE, INDEX);
        else if (!rc)
            rc = open_indexed(f, index, e);
    }
    if (rc) {
        err_wrap(e, "%s", path);
        foreign_close(f);
    }
    return rc;
}

void foreign_close(struct foreign_files *f)
{
    if (!*f->path)
        return;
    for (int i = 0; i < f->nfiles; i++)
        system_close(&f->files[i].fd);
    system_close(&f->dirfd);
    free(f->raw);
    map_clear(&f->by_name);
    arena_clear(&f->arena);
    *f = (struct foreign_files){.dirfd = -1};
}

// ---- reading -------------------------------------------------------------------------------------

int foreign_read(struct foreign_files *f, const struct foreign_stored *t, const struct shape *view,
                 const struct box *b, float *to, struct err *e)
{
    const struct box whole = {.shape = *view};
    const struct foreign_file *file = &f->files[t->file];
    size_t n = (size_t)box_bytes(b, DT_U8);
    bool f16 = strcmp(t->slice.type, "F16") == 0;
    bool half = f16 || t->slice.dtype == DT_BF16;
    if (half && n * sizeof(uint16_t) > f->raw_bytes) {
        free(f->raw);
        f->raw_bytes = n * sizeof(uint16_t);
        f->raw = malloc(f->raw_bytes);
        if (!f->raw) {
            f->raw_bytes = 0;
            return err_set(e, ERR_NOMEM, "no memory to read with");
        }
    }
    int rc = box_read(b, half ? f->raw : to, &whole, file->fd, t->slice.at,
                      half ? sizeof(uint16_t) : sizeof(float), e);
    if (rc)
        err_wrap(e, "%s: tensor '%s'", file->name, t->slice.name);
    for (size_t i = 0; half && !rc && i < n; i++) {
        uint16_t bits = ((const uint16_t *)f->raw)[i];
        to[i] = f16 ? float_of_f16(bits) : float_of_bf16(bits);
    }
    return rc;
}
