// SPDX-License-Identifier: Apache-2.0
// The table of device models, and the text form of others. See device_models.h.
#include "common/explain/device_models.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

// What a communicator of NCCL takes, until a host has measured it: a connection has a buffer for each of
// its three protocols (0.5, 4.7 and 4 MiB), with what goes with it 12 MiB; a block has two of them, to
// its neighbours of a ring and of a chain of trees, and a deterministic job 16 blocks.
#define NCCL ((uint64_t)16 * 2 * 12 * MIB)

// Memory as CUDA offers it, a little under the name's; beside it a context and its
// libraries. Rates are the makers'; links those
// of a network port a device, 400 and 200 Gbit/s. A CPU host is asked at
// placement: no limit here.
static const struct device_model models[] = {
    {"h200", 139 * GIB, 1536 * MIB, 989e12, 67.0 / 989, 4.8e12, 50e9, NCCL, false},
    {"h100", 79 * GIB, 1536 * MIB, 989e12, 67.0 / 989, 3.35e12, 50e9, NCCL, false},
    {"a100-80g", 79 * GIB, 1536 * MIB, 312e12, 19.5 / 312, 2.039e12, 25e9, NCCL, false},
    {"a100-40g", 39 * GIB, 1536 * MIB, 312e12, 19.5 / 312, 1.555e12, 25e9, NCCL, false},
    // The resident memory of a CPU rank beyond its arena: program, oneDNN's
    // code cache, stacks.
    {"cpu", 0, 32 * MIB, 0, 1, 0, 0, 0, false},
};
enum { MODELS = sizeof models / sizeof *models };

const struct device_model *device_model_find(const char *name)
{
    for (int i = 0; i < MODELS; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

const struct device_model *device_model_reported(const char *name)
{
    static const struct {
        const char *reported, *model;
    } names[] = {
        {"NVIDIA H200", "h200"},
        {"NVIDIA H100 80GB HBM3", "h100"},
        {"NVIDIA A100-SXM4-80GB", "a100-80g"},
        {"NVIDIA A100 80GB PCIe", "a100-80g"},
        {"NVIDIA A100-SXM4-40GB", "a100-40g"},
        {"NVIDIA A100-PCIE-40GB", "a100-40g"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].reported, name) == 0)
            return device_model_find(names[i].model);
    return NULL;
}

uint64_t device_model_libraries(const char *name)
{
    const struct device_model *m = device_model_reported(name);
    return m ? m->libraries : models[0].libraries;
}

// ---- sizes -------------------------------------------------------------------------------------

static const struct {
    const char *unit;
    double factor;
} units[] = {
    {"B", 1},         {"KB", 1e3},         {"MB", 1e6},
    {"GB", 1e9},      {"TB", 1e12},        {"KiB", 1024},
    {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776},
};

// "80GB", which has its unit, or "1307e12", which has none; above 0, below 2⁶³.
static bool read_size(const char *text, bool bytes, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*text)) // no sign, no "inf"
        return false;
    *out = strtod(text, &end);
    if (!bytes)
        return !*end && *out > 0 && *out < 1e300;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].unit) != 0)
            continue;
        *out *= units[i].factor;
        return *out > 0 && *out < 9.2e18;
    }
    return false;
}

// ---- one text ----------------------------------------------------------------------------------

static const struct {
    const char *key;
    size_t offset;
    bool bytes;   // a size with its unit
    bool whole;   // in a uint64_t, not a double
    double least; // that a device may have: below it somebody forgot a unit or an exponent
    const char *least_text;
} keys[] = {
    {"memory", offsetof(struct device_model, memory), true, true, 1e6, "1MB"},
    {"libraries", offsetof(struct device_model, libraries), true, true, 0, "0B"},
    {"flops", offsetof(struct device_model, flops), false, false, 1e9, "1e9"},
    {"bandwidth", offsetof(struct device_model, bandwidth), true, false, 1e6, "1MB"},
    {"link", offsetof(struct device_model, link), true, false, 1e3, "1KB"},
};
enum { KEYS = sizeof keys / sizeof *keys };

static int read_key(struct device_model *m, const char *key, const char *value, struct err *e)
{
    double size;
    for (int i = 0; i < KEYS; i++) {
        if (strcmp(keys[i].key, key) != 0)
            continue;
        char *field = (char *)m + keys[i].offset;
        if (!read_size(value, keys[i].bytes, &size))
            return err_set(e, ERR_INVALID, "%s: %s is '%s': try %s", m->name, key, value,
                           keys[i].bytes ? "a size such as 80GB or 80GiB"
                                         : "FLOPs a second such as 989e12");
        if (size < keys[i].least)
            return err_set(e, ERR_INVALID, "%s: %s is '%s', and no device has less than %s",
                           m->name, key, value, keys[i].least_text);
        uint64_t whole = (uint64_t)(keys[i].whole ? size : 0);
        memcpy(field, keys[i].whole ? (const void *)&whole : (const void *)&size, sizeof size);
        return 0;
    }
    return err_set(e, ERR_INVALID,
                   "%s: a device has memory, libraries, flops, bandwidth and link, not '%s'",
                   m->name, key);
}

// "KEY=SIZE,KEY=SIZE" into what is known of the model so far.
static int read_keys(struct arena *a, struct device_model *m, const char *text, struct err *e)
{
    for (int rc;; text++) {
        size_t n = strcspn(text, ",");
        char *one = arena_printf(a, "%.*s", (int)n, text), *equals = strchr(one, '=');
        text += n;
        if (!equals)
            return err_set(e, ERR_INVALID, "%s: '%s' must be KEY=SIZE, as in memory=80GB", m->name,
                           one);
        *equals = 0;
        if ((rc = read_key(m, one, equals + 1, e)) || !*text)
            return rc;
    }
}

static const struct device_model *find_known(const struct device_model *added, int n,
                                             const char *name)
{
    for (int i = n - 1; i >= 0; i--)
        if (strcmp(added[i].name, name) == 0)
            return &added[i];
    return device_model_find(name);
}

static int report_unknown(const struct device_model *added, int n, const char *name, struct err *e)
{
    struct buf all = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", all.len ? ", " : "", added[i].name);
    for (int i = 0; i < MODELS; i++)
        buf_printf(&all, "%s%s", all.len ? ", " : "", models[i].name);
    int rc = err_set(e, ERR_INVALID,
                     "no device model '%s': there are %s; another is described as "
                     "%s:memory=80GB",
                     name, buf_str(&all), *name ? name : "NAME");
    buf_clear(&all);
    return rc;
}

static int read_model(struct arena *a, const char *text, const struct device_model *added, int n,
                      struct device_model *out, struct err *e)
{
    size_t len = strcspn(text, ":");
    const char *name = arena_printf(a, "%.*s", (int)len, text);
    const struct device_model *base = find_known(added, n, name);
    if (!base && (text[len] != ':' || !*name))
        return report_unknown(added, n, name, e);
    *out = base ? *base
                : (struct device_model){.libraries = models[0].libraries, .communicator = NCCL};
    out->name = name;
    int rc = text[len] ? read_keys(a, out, text + len + 1, e) : 0;
    if (!rc && !base && !out->memory)
        rc = err_set(e, ERR_INVALID, "%s is no known model: say its memory, as in %s:memory=80GB",
                     name, name);
    return rc;
}

// ---- a file ------------------------------------------------------------------------------------

// The next line without its comment and the blanks around it; null at the end.
static const char *take_line(struct arena *a, const char **at)
{
    if (!**at)
        return NULL;
    const char *line = *at;
    size_t n = strcspn(line, "\n"), used = strcspn(line, "#\n");
    *at = line + n + (line[n] == '\n');
    while (used && isspace((unsigned char)*line))
        line++, used--;
    while (used && isspace((unsigned char)line[used - 1]))
        used--;
    return arena_printf(a, "%.*s", (int)used, line);
}

int device_model_read(struct arena *a, const char *text, const char *file, const char *path,
                      struct device_model *out, struct err *e)
{
    struct device_model *added = NULL;
    const char *at = file ? file : "", *line;
    int n = 0, cap = 0;
    for (int number = 1; (line = take_line(a, &at)); number++) {
        if (!*line)
            continue;
        added = arena_grow(a, added, sizeof *added, n, &cap);
        if (read_model(a, line, added, n, &added[n], e)) {
            err_wrap(e, "%s:%d", path, number);
            return e->code;
        }
        n++;
    }
    return read_model(a, text, added, n, out, e);
}
