// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint as parameters of a job. See match.h.
#include "common/ckpt/match.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "common/base/map.h"

enum { NAMES_SHOWN = 8 };

// ---- names ----

const char *match_rename(struct arena *a, const struct job_rename *r, const char *name)
{
    const char *text[JOB_RENAME_STARS]; // what each star stands for: as little as can be
    size_t len[JOB_RENAME_STARS], first = strcspn(r->from, "*");
    const char *pattern = r->from + first, *at = name + first;
    struct buf out = {0};
    int stars = 0;
    if (strncmp(r->from, name, first) != 0 || (!*pattern && *at))
        return NULL;
    while (*pattern && stars < JOB_RENAME_STARS) {
        size_t n = strcspn(++pattern, "*"), left = strlen(at);
        bool last = !pattern[n];
        const char *found = last && left >= n ? at + left - n : at;
        while (*found && strncmp(found, pattern, n) != 0)
            found++;
        if (strncmp(found, pattern, n) != 0 || (last && left < n))
            return NULL;
        text[stars] = at;
        len[stars++] = (size_t)(found - at);
        at = found + n;
        pattern += n;
    }
    int star = 0;
    for (const char *c = r->to; *c; c++)
        if (*c != '*')
            buf_putc(&out, *c);
        else if (star < stars) { // the job's reader has seen to that
            buf_append(&out, text[star], len[star]);
            star++;
        }
    return buf_keep(&out, a);
}

static const char *rename_tensor(struct arena *a, const struct job_load *load, const char *name)
{
    const struct job_rename *renames = load->rename.items;
    for (int i = 0; i < load->rename.n; i++) {
        const char *to = match_rename(a, &renames[i], name);
        if (to)
            return to;
    }
    return name;
}

static bool is_asked(const struct job_load *load, const char *name)
{
    const char *const *globs = load->params.items;
    for (int i = 0; i < load->params.n; i++)
        if (!fnmatch(globs[i], name, 0))
            return true;
    return false;
}

// ---- state of an optimiser ----

static const char *const state_kinds[] = {"m", "v", "momentum"};

// Whether the tensor is what an optimiser keeps of a parameter, and no parameter.
static bool is_state(const struct map *all, const char *name)
{
    for (size_t i = 0; i < sizeof state_kinds / sizeof *state_kinds; i++) {
        size_t n = strlen(state_kinds[i]);
        if (!strncmp(name, state_kinds[i], n) && name[n] == '/' && map_get(all, name + n + 1))
            return true;
    }
    return false;
}

const struct manifest_tensor *match_state(const struct manifest *m, const char *kind,
                                          const struct manifest_tensor *from)
{
    char name[1024];
    if (snprintf(name, sizeof name, "%s/%s", kind, from->name) >= (int)sizeof name)
        return NULL;
    return manifest_find(m, name);
}

// ---- shapes ----

static int check_shape(struct arena *a, const struct match_param *p,
                       const struct manifest_tensor *t, bool *grown, struct err *e)
{
    bool fits = t->shape.n == p->shape.n && (t->dtype == DT_F32 || t->dtype == DT_BF16);
    for (int d = 0; fits && d < p->shape.n; d++) {
        bool longer = t->unpadded[d] < p->unpadded[d] && p->grows >> d & 1;
        fits = t->unpadded[d] == p->unpadded[d] || longer;
        *grown = *grown || longer;
    }
    if (fits)
        return 0;
    return err_set(
        e, ERR_INVALID,
        "%s is %s %s in the checkpoint (%s) and F32 %s here: give the model the sizes of "
        "the checkpoint's, or leave the parameter out of checkpoint.load.params",
        p->name, ckpt_dtype_name(t->dtype), shape_text(t->unpadded, t->shape.n, a), t->name,
        shape_text(p->unpadded, p->shape.n, a));
}

bool match_clip(const struct manifest_tensor *from, const int64_t *unpadded, const struct box *b,
                struct box *out)
{
    *out = *b;
    for (int d = 0; d < b->shape.n; d++) {
        int64_t most = from->unpadded[d] < unpadded[d] ? from->unpadded[d] : unpadded[d];
        int64_t left = most - b->start[d];
        out->shape.dim[d] = left < b->shape.dim[d] ? left : b->shape.dim[d];
        if (out->shape.dim[d] <= 0)
            return false;
    }
    return true;
}

void match_widen(const struct manifest_tensor *from, int64_t n, void *values)
{
    const unsigned char *narrow = values;
    uint32_t *wide = values;
    if (from->dtype == DT_BF16)
        while (n--)
            wide[n] = (uint32_t)(narrow[2 * n] | narrow[2 * n + 1] << 8) << 16;
}

// ---- the whole ----

struct matching {
    struct arena *a;
    const struct manifest *m;
    const struct job_load *load;
    struct map all, named, used; // tensors by name; parameters by the name they get; those taken
};

// Finds the name that each parameter of the checkpoint gets.
static int name_params(struct matching *x, struct err *e)
{
    for (int i = 0; i < x->m->ntensors; i++)
        map_put(&x->all, x->m->tensors[i].name, &x->m->tensors[i]);
    for (int i = 0; i < x->m->ntensors; i++) {
        struct manifest_tensor *t = &x->m->tensors[i];
        if (is_state(&x->all, t->name))
            continue;
        const char *to = rename_tensor(x->a, x->load, t->name);
        const struct manifest_tensor *other = map_get(&x->named, to);
        if (other)
            return err_set(e, ERR_INVALID,
                           "checkpoint.load.rename: %s and %s would both be called %s", other->name,
                           t->name, to);
        map_put(&x->named, to, t);
    }
    return 0;
}

static int take_params(struct matching *x, const struct match_param *params, int n,
                       struct match *out, struct err *e)
{
    for (int i = 0; i < n; i++) {
        struct manifest_tensor *t =
            is_asked(x->load, params[i].name) ? map_get(&x->named, params[i].name) : NULL;
        bool grown = false;
        out->from[i] = t;
        if (!t) {
            out->born[out->nborn++] = params[i].name;
            continue;
        }
        int rc = check_shape(x->a, &params[i], t, &grown, e);
        if (rc)
            return rc;
        out->taken++;
        out->grown += grown;
        map_put(&x->used, t->name, t);
    }
    return 0;
}

static void list_unused(struct matching *x, struct match *out)
{
    for (int i = 0; i < x->m->ntensors; i++) {
        const char *name = x->m->tensors[i].name;
        if (!is_state(&x->all, name) && !map_get(&x->used, name))
            out->unused[out->nunused++] = name;
    }
}

int match_params(struct arena *a, const struct manifest *m, const struct job_load *load,
                 const struct match_param *params, int n, struct match *out, struct err *e)
{
    struct matching x = {.a = a, .m = m, .load = load};
    *out = (struct match){0};
    out->from = arena_array(a, const struct manifest_tensor *, n + 1);
    out->born = arena_array(a, const char *, n + 1);
    out->unused = arena_array(a, const char *, m->ntensors + 1);
    int rc = name_params(&x, e);
    rc = rc ? rc : take_params(&x, params, n, out, e);
    if (!rc)
        list_unused(&x, out);
    if (!rc && !out->taken)
        rc = err_set(e, ERR_INVALID,
                     "no parameter is found in the checkpoint: it has %s%s, and this model %s%s; "
                     "checkpoint.load.rename says what one is called in the other",
                     out->nunused ? out->unused[0] : "none", out->nunused > 1 ? ", …" : "",
                     n ? params[0].name : "none", n > 1 ? ", …" : "");
    map_clear(&x.all);
    map_clear(&x.named);
    map_clear(&x.used);
    return rc;
}

const char *match_vocab(const struct match *m, const struct match_param *params, int n)
{
    for (int i = 0; i < n; i++)
        if (m->from[i] && params[i].grows)
            return params[i].name;
    return NULL;
}

static void print_names(const char *what, const char *const *names, int n, struct buf *to)
{
    if (!n)
        return;
    buf_printf(to, "; %s: ", what);
    for (int i = 0; i < n && i < NAMES_SHOWN; i++)
        buf_printf(to, "%s%s", i ? ", " : "", names[i]);
    if (n > NAMES_SHOWN)
        buf_printf(to, " and %d more", n - NAMES_SHOWN);
}

void match_print(const struct match *m, int n, struct buf *to)
{
    buf_printf(to, "%d of %d parameters are taken", m->taken, n);
    if (m->grown)
        buf_printf(to, ", %d of them longer here: their new rows are drawn", m->grown);
    print_names("not found, so drawn", m->born, m->nborn, to);
    print_names("not used", m->unused, m->nunused, to);
}
