// SPDX-License-Identifier: Apache-2.0
// Text out of files, unpacked. See input.h.
#include "common/data/prepare/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/heap.h"

enum { REFUSED = -1, PARQUET = -2 };

#define UTF16 "text in UTF-16: `iconv -f utf-16 -t utf-8 FILE | weft data prepare - …` brings it in"

// What files are, by their first bytes. Those of no packing of ours are refused, with what to do.
static const struct {
    const char *magic;
    size_t len;
    int packing;
    const char *refusal;
} kinds[] = {
    {"\x1f\x8b", 2, INPUT_GZIP, NULL},
    {"\x28\xb5\x2f\xfd", 4, INPUT_ZSTD, NULL},
    {"PAR1", 4, PARQUET, NULL},
    {"BZh", 3, REFUSED, "packed with bzip2: `bzcat FILE | weft data prepare - …` brings it in"},
    {"\xfd\x37zXZ", 5, REFUSED,
     "packed with xz: `xzcat FILE | weft data prepare - …` brings it in"},
    {"PK\3\4", 4, REFUSED, "a zip archive: take the files out of it first"},
    {"ARROW1", 6, REFUSED, "an Arrow file: write its text as lines of JSON (.jsonl) first"},
    {"\x93NUMPY", 6, REFUSED, "an npy file, no text: a job reads tokens of u16 or u32 as they are"},
    {"\xff\xfe", 2, REFUSED, UTF16},
    {"\xfe\xff", 2, REFUSED, UTF16},
};
enum { KINDS = sizeof kinds / sizeof *kinds, MAGIC = 8 };

static int refuse_stopped(const struct input *in, struct err *e)
{
    return in->stop && atomic_load(in->stop) ? err_set(e, ERR_ABORTED, "interrupted") : 0;
}

// Reads more of the file behind what the buffer holds, which has room there.
static int fill_buffer(struct input *in, struct err *e)
{
    enum { WAIT_MS = 100 };
    struct pollfd waits = {.fd = in->fd, .events = POLLIN};
    ssize_t n;
    while (in->stop && poll(&waits, 1, WAIT_MS) <= 0)
        if (refuse_stopped(in, e))
            return ERR_ABORTED;
    do
        n = read(in->fd, in->buffer + in->end, INPUT_BUFFER - in->end);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(e, ERR_IO, "cannot read %s", in->name);
    in->ended = n == 0;
    in->end += (size_t)n;
    in->taken += (uint64_t)n;
    return 0;
}

static int refuse_parquet(const struct input *in, const char *field, struct err *e)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-";
    // What a shell would read otherwise stands in no command that people copy.
    const char *file = in->name[strspn(in->name, plain)] || *in->name == '-' ? "FILE" : in->name;
    field = field[strspn(field, plain)] ? "FIELD" : field;
    return err_set(
        e, ERR_UNSUPPORTED,
        "%s: byte 0: a Parquet file. Where Python has pyarrow, this brings its texts in:\n"
        "python3 -c \"import sys, json, pyarrow.parquet as p; sys.stdout.writelines(json.dumps("
        "{'%s': t}) + '\\n' for f in sys.argv[1:] for b in p.ParquetFile(f).iter_batches("
        "columns=['%s']) for t in b.column(0).to_pylist())\" %s | weft data prepare - --format "
        "jsonl --field %s --out DIR",
        in->name, field, field, file, field);
}

// Finds what the file is packed in; its first bytes stay in the buffer.
static int find_packing(struct input *in, const char *field, struct err *e)
{
    int rc = 0, k = 0;
    while (!rc && !in->ended && in->end < MAGIC) // a pipe may give them one by one
        rc = fill_buffer(in, e);
    if (rc)
        return rc;
    bool skippable = in->end >= 4 && (in->buffer[0] & 0xf0) == 0x50 &&
                     memcmp(in->buffer + 1, "\x2a\x4d\x18", 3) == 0;
    while (k < KINDS && !(skippable && kinds[k].packing == INPUT_ZSTD) &&
           (in->end < kinds[k].len || memcmp(in->buffer, kinds[k].magic, kinds[k].len) != 0))
        k++;
    if (k == KINDS)
        return 0;
    if (kinds[k].packing == PARQUET)
        return refuse_parquet(in, field, e);
    if (kinds[k].packing == REFUSED)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 0: %s", in->name, kinds[k].refusal);
    in->packing = kinds[k].packing;
    bool ready = in->packing == INPUT_GZIP ? inflateInit2(&in->gzip, MAX_WBITS + 16) == Z_OK
                                           : (in->zstd = ZSTD_createDStream()) != NULL;
    if (!ready)
        in->packing = INPUT_PLAIN;
    return ready ? 0 : err_set(e, ERR_NOMEM, "%s: there is no memory to unpack it", in->name);
}

// A file that is cut to nothing, say, would else be a text.
static int compare_name(const struct input *in, struct err *e)
{
    size_t len = strlen(in->name);
    bool gz = len > 3 && strcmp(in->name + len - 3, ".gz") == 0,
         zst = len > 4 && strcmp(in->name + len - 4, ".zst") == 0;
    if ((!gz || in->packing == INPUT_GZIP) && (!zst || in->packing == INPUT_ZSTD))
        return 0;
    return err_set(e, ERR_DATA,
                   "%s: byte 0: it is not packed with %s, as its name says: it is cut off, or give "
                   "it another name",
                   in->name, gz ? "gzip" : "zstd");
}

int input_open(struct input *in, const char *path, const char *field, const atomic_bool *stop,
               struct err *e)
{
    bool standard = strcmp(path, "-") == 0;
    int wait = stop ? O_NONBLOCK : 0; // for the writer of a pipe fill_buffer waits
    *in = (struct input){.name = standard ? "standard input" : path, .stop = stop};
    in->fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                      : open(path, O_RDONLY | O_CLOEXEC | wait);
    if (in->fd < 0)
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s", in->name);
    if (!standard && wait && fcntl(in->fd, F_SETFL, 0)) {
        close(in->fd);
        return err_errno(e, ERR_IO, "cannot open %s", in->name);
    }
    in->buffer = heap_alloc(INPUT_BUFFER);
    int rc = find_packing(in, field, e);
    if (!rc)
        rc = compare_name(in, e);
    if (rc)
        input_close(in);
    return rc;
}

static int refuse_damage(const struct input *in, const char *what, struct err *e)
{
    static const char *const names[] = {[INPUT_GZIP] = "gzip", [INPUT_ZSTD] = "zstd"};
    return err_set(e, ERR_DATA, "%s: byte %llu: %s: %s", in->name,
                   (unsigned long long)input_place(in), names[in->packing], what);
}

static int unpack_gzip(struct input *in, void *to, size_t *got, struct err *e)
{
    z_stream *z = &in->gzip;
    z->next_in = in->buffer + in->at;
    z->avail_in = (uInt)(in->end - in->at);
    z->next_out = to;
    z->avail_out = INPUT_BUFFER;
    int rc = inflate(z, Z_NO_FLUSH);
    in->at = in->end - z->avail_in;
    *got = INPUT_BUFFER - z->avail_out;
    in->within = rc != Z_STREAM_END;
    if (rc == Z_STREAM_END)
        inflateReset(z);
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return refuse_damage(in, z->msg ? z->msg : "it cannot be unpacked", e);
    return 0;
}

static int unpack_zstd(struct input *in, void *to, size_t *got, struct err *e)
{
    ZSTD_inBuffer from = {in->buffer, in->end, in->at};
    ZSTD_outBuffer out = {to, INPUT_BUFFER, 0};
    size_t rc = ZSTD_decompressStream(in->zstd, &out, &from);
    in->at = from.pos;
    *got = out.pos;
    in->within = rc != 0;
    return ZSTD_isError(rc) ? refuse_damage(in, ZSTD_getErrorName(rc), e) : 0;
}

int input_read(struct input *in, void *to, size_t *got, struct err *e)
{
    int rc = refuse_stopped(in, e);
    *got = 0;
    while (!rc && !*got) {
        if (in->at == in->end) {
            in->at = in->end = 0;
            if (!in->ended && (rc = fill_buffer(in, e)))
                return rc;
        }
        bool empty = in->at == in->end;
        if (empty && !in->within)
            return 0;
        if (in->packing == INPUT_PLAIN) {
            *got = in->end - in->at;
            memcpy(to, in->buffer + in->at, *got);
            in->at += *got;
            return 0;
        }
        rc = (in->packing == INPUT_GZIP ? unpack_gzip : unpack_zstd)(in, to, got, e);
        if (!rc && empty && !*got && in->within)
            return refuse_damage(in, "the file ends here, within what is packed: it is cut off", e);
    }
    return rc;
}

int input_seek(struct input *in, uint64_t byte, struct err *e)
{
    if (lseek(in->fd, (off_t)byte, SEEK_SET) < 0)
        return err_errno(e, ERR_IO, "cannot read %s", in->name);
    in->at = in->end = 0;
    in->taken = byte;
    in->ended = false;
    return 0;
}

uint64_t input_place(const struct input *in)
{
    return in->taken - (in->end - in->at);
}

void input_close(struct input *in)
{
    if (!in->buffer)
        return;
    if (in->packing == INPUT_GZIP)
        inflateEnd(&in->gzip);
    ZSTD_freeDStream(in->zstd);
    free(in->buffer);
    close(in->fd);
    *in = (struct input){0};
}
