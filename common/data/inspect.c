// SPDX-License-Identifier: Apache-2.0
// What `weft data inspect` says: see inspect.h.
#include "common/data/inspect.h"

#include <math.h>
#include <string.h>

#include "common/base/plain.h"

static void scan_values(struct inspect *in)
{
    double sum = 0;
    for (uint64_t i = 0; i < in->array.count; i++) {
        double v = array_real(&in->array, i);
        if (!isfinite(v))
            continue;
        if (in->finite == 0)
            in->min = in->max = v;
        in->min = fmin(in->min, v);
        in->max = fmax(in->max, v);
        in->finite++;
        sum += v;
    }
    if (in->finite)
        in->mean = sum / (double)in->finite;
}

static bool holds_tokens(const struct array *a)
{
    return strcmp(a->format, "raw") == 0 || strcmp(a->format, "llm.c") == 0;
}

static void count_classes(struct inspect *in)
{
    const struct array *a = &in->array;
    if (holds_tokens(a) || !array_type_is_int(a->type) || a->shape.n != 1 || a->count == 0 ||
        in->min < 0 || in->max >= INSPECT_MAX_CLASSES)
        return;
    in->classes = (int)in->max + 1;
    for (uint64_t i = 0; i < a->count; i++)
        in->histogram[array_int(a, i)]++;
}

// `weft data prepare` makes bytes as u16 ids, in a file that says nothing of it: one of no known
// format whose numbers are all those of a byte is taken for that.
static int open_bytes(struct inspect *in, const char *path)
{
    int rc = array_open_raw(&in->array, NULL, path, ARRAY_U16, NULL);
    for (uint64_t i = 0; !rc && i < in->array.count; i++)
        if (array_int(&in->array, i) > UINT8_MAX) {
            array_close(&in->array);
            return ERR_DATA;
        }
    return rc;
}

int inspect_open(struct inspect *in, const char *path, enum array_type ids, struct err *e)
{
    *in = (struct inspect){0};
    int rc = ids == ARRAY_TYPE_COUNT ? array_open(&in->array, path, e)
                                     : array_open_raw(&in->array, NULL, path, ids, e);
    if (rc == ERR_DATA && ids == ARRAY_TYPE_COUNT && !open_bytes(in, path))
        rc = 0;
    if (rc)
        return rc;
    scan_values(in);
    count_classes(in);
    return 0;
}

void inspect_close(struct inspect *in)
{
    array_close(&in->array);
}

void inspect_text(const struct inspect *in, struct buf *out)
{
    const struct array *a = &in->array;
    plain_line(out, "%s", a->path);
    buf_printf(out, "  format   %s, %s, shape [", a->format, array_type_name(a->type));
    for (int i = 0; i < a->shape.n; i++)
        buf_printf(out, "%s%lld", i ? ", " : "", (long long)a->shape.dim[i]);
    buf_printf(out, "]\n  bytes    %zu, elements from byte %zu\n", a->file_len, a->offset);
    if (in->finite)
        buf_printf(out, "  values   min %.9g, max %.9g, mean %.9g\n", in->min, in->max, in->mean);
    if (in->finite < a->count)
        buf_printf(out, "  warning  %llu values are not finite\n",
                   (unsigned long long)(a->count - in->finite));
    if (!in->classes)
        return;
    buf_printf(out, "  classes  %d:", in->classes);
    for (int c = 0; c < in->classes; c++)
        buf_printf(out, " %d×%llu", c, (unsigned long long)in->histogram[c]);
    buf_putc(out, '\n');
}

static void print_json_value(const struct inspect *in, const char *key, double v,
                             struct json_out *out)
{
    if (in->finite)
        json_double(out, key, v);
    else
        json_null(out, key);
}

void inspect_json(const struct inspect *in, const char *key, struct json_out *out)
{
    const struct array *a = &in->array;
    json_object(out, key);
    json_str(out, "path", a->path);
    json_str(out, "format", a->format);
    json_str(out, "dtype", array_type_name(a->type));
    json_array(out, "shape");
    for (int i = 0; i < a->shape.n; i++)
        json_int(out, NULL, a->shape.dim[i]);
    json_end(out);
    json_uint(out, "bytes", a->file_len);
    json_uint(out, "offset", a->offset);
    json_uint(out, "count", a->count);
    print_json_value(in, "min", in->min, out);
    print_json_value(in, "max", in->max, out);
    print_json_value(in, "mean", in->mean, out);
    json_uint(out, "nonfinite_values", a->count - in->finite);
    if (in->classes) {
        json_array(out, "classes");
        for (int c = 0; c < in->classes; c++)
            json_uint(out, NULL, in->histogram[c]);
        json_end(out);
    } else {
        json_null(out, "classes");
    }
    json_end(out);
}
