// SPDX-License-Identifier: Apache-2.0
// See event_file.h. The field numbers are those of TensorFlow's Event, Summary and TensorProto, and of
// TensorBoard's HParamsPluginData.
#include "worker/sinks/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/system.h"

enum { BYTE_VALUES = 256 };
enum { HEAD = 12, TAIL = 4 };        // bytes of a record before and behind its event
#define EVENT_MAX ((int64_t)1 << 30) // a longer one is damage
enum { BUCKETS = 30 };               // of a histogram
enum { STRINGS = 7 };                // DT_STRING
enum { TENSORS = 2 };                // DATA_CLASS_TENSOR

// ---- CRC32C ----

uint32_t event_crc32c(const void *data, size_t len)
{
    static _Thread_local uint32_t table[BYTE_VALUES];
    const unsigned char *at = data;
    uint32_t crc = 0xffffffff;
    for (uint32_t i = 0; !table[255] && i < BYTE_VALUES; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (c & 1 ? 0x82f63b78 : 0);
        table[i] = c;
    }
    for (size_t i = 0; i < len; i++)
        crc = (crc >> 8) ^ table[(crc ^ at[i]) & 255];
    return ~crc;
}

static uint32_t mask_crc(const void *data, size_t len)
{
    uint32_t crc = event_crc32c(data, len);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

// ---- the encoding of protocol buffers ----

static void put_varint(struct buf *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        buf_putc(b, (char)((value & 127) | 128));
    buf_putc(b, (char)value);
}

static void put_int(struct buf *b, int field, int64_t value)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, (uint64_t)value);
}

static void put_double(struct buf *b, int field, double value)
{
    put_varint(b, (uint64_t)field << 3 | 1);
    buf_append(b, &value, sizeof value);
}

static void put_float(struct buf *b, int field, float value)
{
    put_varint(b, (uint64_t)field << 3 | 5);
    buf_append(b, &value, sizeof value);
}

static void put_bytes(struct buf *b, int field, const void *bytes, size_t len)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, len);
    buf_append(b, bytes, len);
}

static void put_text(struct buf *b, int field, const char *text)
{
    put_bytes(b, field, text, strlen(text));
}

// Puts `from` into `b` as a message, and empties it.
static void put_message(struct buf *b, int field, struct buf *from)
{
    put_bytes(b, field, buf_str(from), from->len);
    buf_reset(from);
}

// ---- events ----

void event_begin(struct event_file *f, double wall_s, int64_t step)
{
    buf_reset(&f->event);
    buf_reset(&f->summary);
    put_double(&f->event, 1, wall_s);
    put_int(&f->event, 2, step);
}

void event_end(struct event_file *f)
{
    if (f->summary.len)
        put_message(&f->event, 5, &f->summary);
    uint64_t len = f->event.len;
    uint32_t crc = mask_crc(&len, sizeof len), event_crc = mask_crc(f->event.data, f->event.len);
    buf_append(&f->gathered, &len, sizeof len);
    buf_append(&f->gathered, &crc, sizeof crc);
    buf_append(&f->gathered, f->event.data, f->event.len);
    buf_append(&f->gathered, &event_crc, sizeof event_crc);
}

void event_scalar(struct event_file *f, const char *tag, double value)
{
    put_text(&f->value, 1, tag);
    put_float(&f->value, 2, (float)value);
    put_message(&f->summary, 1, &f->value);
}

// Metadata of a value: whose plugin shows it, and with `data` what that is given.
static void put_plugin(struct event_file *f, const char *plugin, struct buf *data)
{
    struct buf metadata = {0};
    put_text(&f->part, 1, plugin);
    if (data)
        put_message(&f->part, 2, data);
    put_message(&metadata, 1, &f->part);
    put_int(&metadata, 4, TENSORS);
    put_message(&f->value, 9, &metadata);
    buf_clear(&metadata);
}

void event_text(struct event_file *f, const char *tag, const char *text)
{
    put_text(&f->value, 1, tag);
    put_plugin(f, "text", NULL);
    put_int(&f->part, 1, STRINGS);
    put_bytes(&f->part, 2, "", 0); // a tensor of no dimension
    put_text(&f->part, 8, text);
    put_message(&f->value, 8, &f->part);
    put_message(&f->summary, 1, &f->value);
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void event_histogram(struct event_file *f, const char *tag, double *values, int n)
{
    double sum = 0, squares = 0, limits[BUCKETS], counts[BUCKETS] = {0};
    if (n <= 0)
        return;
    qsort(values, (size_t)n, sizeof *values, compare_numbers);
    double least = values[0], most = values[n - 1];
    double width = most > least ? (most - least) / BUCKETS : 0;
    int nbuckets = width > 0 && isfinite(width) ? BUCKETS : 1;
    for (int i = 0; i < nbuckets; i++) // the last ends at the greatest value itself
        limits[i] = i == nbuckets - 1 ? most : least + width * (i + 1);
    for (int i = 0, bucket = 0; i < n; i++) {
        sum += values[i];
        squares += values[i] * values[i];
        while (bucket < nbuckets - 1 && values[i] > limits[bucket])
            bucket++;
        counts[bucket]++;
    }
    put_double(&f->part, 1, least);
    put_double(&f->part, 2, most);
    put_double(&f->part, 3, n);
    put_double(&f->part, 4, sum);
    put_double(&f->part, 5, squares);
    put_bytes(&f->part, 6, limits, sizeof *limits * (size_t)nbuckets);
    put_bytes(&f->part, 7, counts, sizeof *counts * (size_t)nbuckets);
    put_text(&f->value, 1, tag);
    put_message(&f->value, 5, &f->part);
    put_message(&f->summary, 1, &f->value);
}

void event_session_start(struct event_file *f)
{
    put_int(&f->part, 1, 1); // SessionLog.START
    put_message(&f->event, 7, &f->part);
}

// An entry of SessionStartInfo's map: the name, and a google.protobuf.Value.
static void put_setting(struct buf *info, const struct event_setting *s)
{
    struct buf value = {0}, entry = {0};
    if (s->text)
        put_text(&value, 3, s->text);
    else if (s->is_bool)
        put_int(&value, 4, s->number != 0);
    else
        put_double(&value, 2, s->number);
    put_text(&entry, 1, s->name);
    put_message(&entry, 2, &value);
    put_message(info, 1, &entry);
    buf_clear(&value);
    buf_clear(&entry);
}

void event_settings(struct event_file *f, const struct event_setting *settings, int n,
                    double started_s)
{
    struct buf info = {0}, data = {0};
    for (int i = 0; i < n; i++)
        put_setting(&info, &settings[i]);
    put_double(&info, 5, started_s);
    put_int(&data, 1, 0); // PLUGIN_DATA_VERSION
    put_message(&data, 3, &info);
    put_text(&f->value, 1, "_hparams_/session_start_info");
    put_plugin(f, "hparams", &data);
    put_int(&f->part, 1, 1);       // an empty tensor of floats, since a value has to have one
    put_bytes(&f->part, 2, "", 0); // of no dimension
    put_float(&f->part, 5, 0);
    put_message(&f->value, 8, &f->part);
    put_message(&f->summary, 1, &f->value);
    buf_clear(&info);
    buf_clear(&data);
}

// ---- the file ----

// The end of the last record that is whole: lengths are followed from the beginning, and the last
// event is held against its checksum.
static int64_t find_end(int fd, int64_t size)
{
    char head[HEAD];
    int64_t at = 0, last = 0;
    uint64_t len = 0, last_len = 0;
    uint32_t crc;
    while (pread(fd, head, HEAD, at) == HEAD) {
        memcpy(&len, head, sizeof len);
        memcpy(&crc, head + sizeof len, sizeof crc);
        if (crc != mask_crc(&len, sizeof len) || len > (uint64_t)EVENT_MAX ||
            (int64_t)len > size - at - HEAD - TAIL)
            break;
        last = at;
        last_len = len;
        at += HEAD + (int64_t)len + TAIL;
    }
    char *event = at ? malloc(last_len + TAIL) : NULL;
    bool whole =
        event && pread(fd, event, last_len + TAIL, last + HEAD) == (ssize_t)(last_len + TAIL);
    if (whole) {
        memcpy(&crc, event + last_len, sizeof crc);
        whole = crc == mask_crc(event, last_len);
    }
    free(event);
    return whole ? at : last;
}

int event_file_open(int folder, const char *path, struct event_file *f, struct err *e)
{
    struct stat st;
    *f = (struct event_file){
        .fd = openat(folder, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644)};
    if (f->fd < 0)
        return err_errno(e, ERR_IO, "cannot open %s", path);
    int rc = fstat(f->fd, &st) ? err_errno(e, ERR_IO, "cannot see %s", path) : 0;
    if (!rc && !S_ISREG(st.st_mode))
        rc = err_set(e, ERR_DATA, "%s is no regular file", path);
    if (!rc) {
        f->end = find_end(f->fd, st.st_size);
        f->continues = f->end > 0;
    }
    if (!rc && f->end < st.st_size && ftruncate(f->fd, f->end))
        rc = err_errno(e, ERR_IO, "cannot cut off the half record at the end of %s", path);
    if (rc) {
        event_file_close(f);
        return rc;
    }
    if (!f->continues) {
        event_begin(f, (double)clock_wall_ms() / 1e3, 0);
        put_text(&f->event, 3, "brain.Event:2");
        event_end(f);
    }
    return 0;
}

int event_file_write(struct event_file *f, struct err *e)
{
    size_t done = 0;
    while (done < f->gathered.len) {
        ssize_t n =
            pwrite(f->fd, f->gathered.data + done, f->gathered.len - done, f->end + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err_errno(e, ERR_IO, "cannot write the events");
            (void)ftruncate(f->fd, f->end); // what is left there is written over, or cut off, later
            return ERR_IO;
        }
        done += (size_t)n;
    }
    f->end += (int64_t)done;
    buf_reset(&f->gathered);
    return 0;
}

int event_file_sync(struct event_file *f, struct err *e)
{
    return fdatasync(f->fd) ? err_errno(e, ERR_IO, "cannot sync the events") : 0;
}

void event_file_close(struct event_file *f)
{
    system_close(&f->fd);
    buf_clear(&f->gathered);
    buf_clear(&f->event);
    buf_clear(&f->summary);
    buf_clear(&f->value);
    buf_clear(&f->part);
}
