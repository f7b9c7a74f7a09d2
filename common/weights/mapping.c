// SPDX-License-Identifier: Apache-2.0
// Pieces of parameters and tensors. See mapping.h.
#include "common/weights/mapping.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"

enum { MOST_TENSORS = 1 << 20, MOST_WORDS = 16 };

struct maker {
    struct mapping *m;
    struct arena *a;
    const struct model_sizes *sizes;
    const char *prefix;
    const struct foreign_line *line;
    struct map params, tensors; // by name
    bool met;                   // the line has a parameter
    struct err *e;
};

void weight_params_find(const struct graph *g, struct arena *a, struct weight_params *out)
{
    *out = (struct weight_params){.param = arena_array(a, struct weight_param, g->nvalues + 1)};
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VALUE_PARAM || v->alias >= 0)
            continue;
        struct weight_param *p = &out->param[out->n++];
        *p = (struct weight_param){.name = arena_strdup(a, v->name), .shape = v->shape};
        for (int d = 0; d < v->shape.n; d++) {
            p->size[d] = v->limit[d] ? v->limit[d] : v->shape.dim[d];
            if (v->dims[d] != DIM_QKV)
                p->dim[d] = arena_strdup(a, dims_name(g->dims, v->dims[d]));
        }
    }
}

// ---- names with braces ---------------------------------------------------------------------------

// The next {…} from `at` on, what is inside in *in. Null: there is none.
static const char *find_brace(struct arena *a, const char *at, const char **in)
{
    const char *open = strchr(at, '{'), *close = open ? strchr(open, '}') : NULL;
    if (close)
        *in = arena_printf(a, "%.*s", (int)(close - open) - 1, open + 1);
    return close ? open : NULL;
}

// `name` with every {what} replaced.
static const char *fill_brace(struct arena *a, const char *name, const char *what, const char *by)
{
    const char *open = arena_printf(a, "{%s}", what), *at;
    while ((at = strstr(name, open)))
        name = arena_printf(a, "%.*s%s%s", (int)(at - name), name, by, at + strlen(open));
    return name;
}

// The words of {a|b}, which stands in `name`; 0: there is no such.
static int find_words(struct arena *a, const char *name, const char **inside,
                      const char *word[MOST_WORDS])
{
    const char *in = NULL, *at = name;
    while ((at = find_brace(a, at, &in)) && !strchr(in, '|'))
        at++;
    if (!at)
        return 0;
    *inside = in;
    int n = 0;
    for (const char *w = in; n < MOST_WORDS; w++) {
        size_t len = strcspn(w, "|");
        word[n++] = arena_printf(a, "%.*s", (int)len, w);
        w += len;
        if (!*w)
            break;
    }
    return n;
}

// The number that stands in `name` where `pattern` has {n}; −1: the name is another.
static int64_t match_number(const char *pattern, const char *name)
{
    const char *at = strstr(pattern, "{n}");
    size_t head = at ? (size_t)(at - pattern) : strlen(pattern);
    if (strncmp(pattern, name, head) != 0 || !at)
        return at || strcmp(pattern, name) != 0 ? -1 : 0;
    size_t digits = strspn(name + head, "0123456789");
    bool plain = digits > 0 && digits < 10 && (digits == 1 || name[head] != '0');
    return plain && strcmp(at + 3, name + head + digits) == 0 ? strtoll(name + head, NULL, 10) : -1;
}

bool weight_name_matches(const char *pattern, const char *name)
{
    return match_number(pattern, name) >= 0;
}

// ---- one tensor ----------------------------------------------------------------------------------

// A norm's weight has a dimension of its own name: a line calls it as what it is as long as.
static int find_dim(const struct maker *k, const struct weight_param *p, const char *name)
{
    for (int d = 0; d < p->shape.n; d++)
        if (name ? p->dim[d] && strcmp(p->dim[d], name) == 0 : !p->dim[d])
            return d;
    bool norm = name && p->shape.n == 1 && p->dim[0] && strcmp(p->dim[0], "norm") == 0;
    return norm && model_sizes_whole(k->sizes, name, -1) == p->size[0] ? 0 : -1;
}

// A piece being made; a rotary order that exchanges halves makes two of one.
struct draft {
    const struct weight_param *param;
    struct weight_piece piece[2 * MAX_DIMS];
    int n;
    bool used[MAX_DIMS];
};

static int add_atom(struct maker *k, struct draft *d, struct weight_atom atom)
{
    for (int i = 0; i < d->n; i++) {
        struct weight_piece *p = &d->piece[i];
        if (p->natoms == 2 * MAX_DIMS)
            return err_set(k->e, ERR_INVALID, "more than %d dimensions", 2 * MAX_DIMS);
        p->atom[p->natoms++] = atom;
    }
    return 0;
}

// Entries `at` + i · step of the tensor's dimension `view` are those of a dimension of the parameter.
static int add_factor(struct maker *k, struct draft *d, const struct foreign_factor *f, int view,
                      int64_t at, int64_t step)
{
    const struct weight_param *p = d->param;
    int dim = find_dim(k, p, f->dim), half = d->n;
    if (dim < 0)
        return err_set(k->e, ERR_INVALID, "%s is no dimension of %s", f->dim ? f->dim : "a number",
                       p->name);
    if (d->used[dim])
        return err_set(k->e, ERR_INVALID, "%s has dimension %s once", p->name,
                       f->dim ? f->dim : "a number");
    d->used[dim] = true;
    int64_t n = p->size[dim];
    struct weight_atom all = {n, {dim, view}, {0, at}, {1, step}};
    if (f->order == ORDER_SAME)
        return add_atom(k, d, all);
    if (n % 2)
        return err_set(k->e, ERR_INVALID, "%s = %" PRId64 " has no halves", f->dim, n);
    if (f->order == ORDER_TURNED) {
        if (2 * half > 2 * MAX_DIMS)
            return err_set(k->e, ERR_INVALID, "more than %d dimensions are turned", MAX_DIMS / 2);
        memcpy(d->piece + half, d->piece, sizeof *d->piece * (size_t)half);
        for (int i = 0; i < 2 * half; i++) {
            int64_t ours = i < half ? 0 : n / 2, theirs = n / 2 - ours;
            d->piece[i].atom[d->piece[i].natoms++] =
                (struct weight_atom){n / 2, {dim, view}, {ours, at + theirs * step}, {1, step}};
        }
        d->n = 2 * half;
        return 0;
    }
    bool pairs = f->order == ORDER_PAIRS; // of theirs
    struct weight_atom which = all, within = all;
    which.n = 2;
    within.n = n / 2;
    within.at[THEIRS] = 0; // their places are added up
    which.step[OURS] = pairs ? n / 2 : 1;
    within.step[OURS] = pairs ? 1 : 2;
    which.step[THEIRS] = (pairs ? 1 : n / 2) * step;
    within.step[THEIRS] = (pairs ? 2 : 1) * step;
    int rc = add_atom(k, d, which);
    return rc ? rc : add_atom(k, d, within);
}

static int64_t factor_size(const struct maker *k, const struct weight_param *p,
                           const struct foreign_factor *f)
{
    int d = find_dim(k, p, f->dim);
    return d < 0 ? 1 : p->size[d];
}

static int64_t product_size(const struct maker *k, const struct weight_param *p,
                            const struct foreign_product *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->n; i++)
        n *= factor_size(k, p, &x->factor[i]);
    return n;
}

// Factors that are a dimension of the view each.
static int add_product(struct maker *k, struct draft *d, int n, const struct foreign_product *x,
                       struct shape *view)
{
    int rc = 0;
    for (int i = 0; i < x->n && !rc; i++) {
        int64_t size = factor_size(k, d[0].param, &x->factor[i]);
        if (view->n == MAX_DIMS)
            return err_set(k->e, ERR_INVALID, "more than %d dimensions", MAX_DIMS);
        for (int p = 0; p < n && !rc; p++) {
            rc = add_factor(k, &d[p], &x->factor[i], view->n, 0, 1);
            if (!rc && factor_size(k, d[p].param, &x->factor[i]) != size)
                rc =
                    err_set(k->e, ERR_INVALID, "%s and %s have other sizes of %s", d[0].param->name,
                            d[p].param->name, x->factor[i].dim ? x->factor[i].dim : "a stack");
        }
        view->dim[view->n++] = size;
    }
    return rc;
}

static int add_sum(struct maker *k, struct draft *d, const struct foreign_dim *x,
                   struct shape *view)
{
    int rc = 0;
    int64_t at = 0;
    if (view->n == MAX_DIMS)
        return err_set(k->e, ERR_INVALID, "more than %d dimensions", MAX_DIMS);
    for (int p = 0; p < x->nterms && !rc; p++) {
        const struct foreign_product *term = &x->term[p];
        int64_t size = product_size(k, d[p].param, term), step = size;
        for (int i = 0; i < term->n && !rc; i++) {
            step /= factor_size(k, d[p].param, &term->factor[i]);
            rc = add_factor(k, &d[p], &term->factor[i], view->n, i ? 0 : at, step);
        }
        at += size;
    }
    view->dim[view->n++] = at;
    return rc;
}

static int keep_draft(struct maker *k, const struct draft *d, int tensor)
{
    const struct weight_param *p = d->param;
    struct mapping *m = k->m;
    for (int i = 0; i < p->shape.n; i++)
        if (!d->used[i] && d->piece[0].fixed[i] < 0)
            return err_set(k->e, ERR_INVALID, "%s of %s is not named between the brackets",
                           p->dim[i] ? p->dim[i] : "the stack", p->name);
    for (int i = 0; i < d->n; i++) {
        m->pieces = arena_grow(k->a, m->pieces, sizeof *m->pieces, m->npieces, &m->pieces_cap);
        m->pieces[m->npieces] = d->piece[i];
        m->pieces[m->npieces].object[OURS] = (int)(p - m->params.param);
        m->pieces[m->npieces++].object[THEIRS] = tensor;
    }
    return 0;
}

// The tensor of this name, made of the drafts' parameters.
static int add_tensor(struct maker *k, const char *name, struct draft *d)
{
    const struct foreign_tensor *t = &k->line->tensor;
    struct mapping *m = k->m;
    struct weight_tensor made = {.line = k->line->at.line};
    int rc = 0;
    made.name =
        *name == '/' ? arena_strdup(k->a, name + 1) : arena_printf(k->a, "%s%s", k->prefix, name);
    if (strchr(made.name, '{'))
        return err_set(k->e, ERR_INVALID, "%s: nothing says what stands between the braces",
                       made.name);
    if (map_put(&k->tensors, made.name, &k->tensors))
        return err_set(k->e, ERR_INVALID, "%s is made twice", made.name);
    if (m->ntensors == MOST_TENSORS)
        return err_set(k->e, ERR_INVALID, "more than %d tensors", MOST_TENSORS);
    for (int i = 0; i < t->ndims && !rc; i++) {
        int first = made.view.n;
        rc = add_product(k, d, t->n, &t->dim[i].before, &made.view);
        if (!rc && t->dim[i].nterms)
            rc = add_sum(k, d, &t->dim[i], &made.view);
        if (!rc)
            rc = add_product(k, d, t->n, &t->dim[i].after, &made.view);
        made.shape.dim[made.shape.n] = 1;
        for (; first < made.view.n; first++)
            made.shape.dim[made.shape.n] *= made.view.dim[first];
        made.shape.n++;
    }
    m->tensors = arena_grow(k->a, m->tensors, sizeof *m->tensors, m->ntensors, &m->tensors_cap);
    m->tensors[m->ntensors++] = made;
    for (int p = 0; p < t->n && !rc; p++)
        rc = keep_draft(k, &d[p], m->ntensors - 1);
    return rc;
}

// ---- one line ------------------------------------------------------------------------------------

enum { MOST_PATHS = 8 };

static void begin_draft(const struct maker *k, const struct weight_param *p, int item,
                        struct draft *d)
{
    *d = (struct draft){.param = p, .n = 1};
    for (int i = 0; i < MAX_DIMS; i++)
        d->piece[0].fixed[i] = i < p->shape.n && !p->dim[i] && item >= 0 ? item : -1;
    d->piece[0].plus_one = k->line->tensor.plus_one;
}

// A tensor for each item of the stack and each index of {expert}.
static int add_tensors(struct maker *k, const struct weight_param *const *param, const char *name)
{
    const struct foreign_tensor *t = &k->line->tensor;
    const char *word[MOST_WORDS] = {NULL}, *items = NULL, *index = NULL;
    PRE(t->n > 0 && param[0]);
    int n = find_words(k->a, name, &items, word), rc = 0, stack = find_dim(k, param[0], NULL);
    if (n && (stack < 0 || param[0]->size[stack] != n))
        return err_set(k->e, ERR_INVALID, "{%s}: %s is no stack of %d", items, param[0]->name, n);
    for (int i = 0; i < (n ? n : 1) && !rc; i++) {
        const char *one = n ? fill_brace(k->a, name, items, word[i]) : name;
        int dim = find_brace(k->a, one, &index) ? find_dim(k, param[0], index) : -1;
        int64_t count = dim < 0 ? 1 : param[0]->size[dim];
        for (int64_t x = 0; x < count && !rc; x++) {
            struct draft d[MOST_PATHS];
            for (int p = 0; p < t->n && !rc; p++) {
                PRE(param[p]);
                int item = n ? i : t->path[p].item, own = find_dim(k, param[p], NULL);
                if (item >= 0 && (own < 0 || item >= param[p]->size[own]))
                    return err_set(k->e, ERR_INVALID, "%s has no item %d", param[p]->name, item);
                begin_draft(k, param[p], item, &d[p]);
                int at = dim < 0 ? -1 : find_dim(k, param[p], index);
                if (dim >= 0 && (at < 0 || param[p]->size[at] != count))
                    return err_set(k->e, ERR_INVALID, "{%s} is no dimension of %s", index,
                                   param[p]->name);
                if (at >= 0)
                    d[p].piece[0].fixed[at] = x;
                for (int q = 0; q < param[p]->shape.n; q++)
                    d[p].used[q] = d[p].piece[0].fixed[q] >= 0;
            }
            const char *number = arena_printf(k->a, "%" PRId64, x);
            rc = add_tensor(k, dim < 0 ? one : fill_brace(k->a, one, index, number), d);
        }
    }
    return rc;
}

// The line for one word of {a|b} on its left, or for none.
static int add_word(struct maker *k, const char *words, const char *word)
{
    const struct foreign_tensor *t = &k->line->tensor;
    const char *path[MOST_PATHS] = {NULL};
    int rc = 0;
    PRE(t->n > 0);
    for (int p = 0; p < t->n; p++)
        path[p] = word ? fill_brace(k->a, t->path[p].text, words, word) : t->path[p].text;
    for (int i = 0; i < k->m->params.n && !rc; i++) {
        int64_t number = match_number(path[0], k->m->params.param[i].name);
        const struct weight_param *param[MOST_PATHS] = {&k->m->params.param[i]};
        const char *n = arena_printf(k->a, "%" PRId64, number);
        if (number < 0)
            continue;
        for (int p = 1; p < t->n; p++) {
            PRE(path[p]);
            const char *other = fill_brace(k->a, path[p], "n", n);
            param[p] = map_get(&k->params, other);
            if (!param[p])
                return err_set(k->e, ERR_INVALID, "there is %s and no %s", param[0]->name, other);
        }
        k->met = true;
        const char *name = fill_brace(k->a, t->tensor, "n", n);
        rc = add_tensors(k, param, word ? fill_brace(k->a, name, "", word) : name);
    }
    return rc;
}

static int add_drop(struct maker *k)
{
    const struct foreign_tensor *t = &k->line->tensor;
    struct mapping *m = k->m;
    struct weight_drop drop = {.like = -1};
    drop.pattern =
        *t->tensor == '/' ? t->tensor + 1 : arena_printf(k->a, "%s%s", k->prefix, t->tensor);
    const struct weight_param *like = t->like ? map_get(&k->params, t->like) : NULL;
    for (int i = 0; like && i < m->npieces && drop.like < 0; i++)
        if (&m->params.param[m->pieces[i].object[OURS]] == like)
            drop.like = m->pieces[i].object[THEIRS];
    if (t->like && drop.like < 0)
        return err_set(k->e, ERR_INVALID, "no line above makes a tensor of %s", t->like);
    m->drops = arena_grow(k->a, m->drops, sizeof *m->drops, m->ndrops, &m->drops_cap);
    m->drops[m->ndrops++] = drop;
    return 0;
}

static int add_line(struct maker *k)
{
    const struct foreign_tensor *t = &k->line->tensor;
    const char *word[MOST_WORDS], *words = NULL;
    if (!t->n)
        return add_drop(k);
    if (t->n > MOST_PATHS)
        return err_set(k->e, ERR_INVALID, "more than %d parameters", MOST_PATHS);
    int n = find_words(k->a, t->path[0].text, &words, word), rc = 0;
    k->met = false;
    for (int i = 0; i < (n ? n : 1) && !rc; i++)
        rc = add_word(k, words, n ? word[i] : NULL);
    if (!rc && !k->met)
        rc = err_set(k->e, ERR_INVALID, "the model has no parameter %s", t->path[0].text);
    return rc;
}

static int add_lines(struct maker *k, const struct foreign_line *line)
{
    int rc = 0;
    for (; line && !rc; line = line->next) {
        struct model_errors errs = {.arena = k->a};
        struct number holds;
        k->line = line;
        if (line->kind == FOREIGN_TENSOR)
            rc = add_line(k);
        else if (!foreign_number(k->sizes, line->value, -1, &holds, &errs))
            rc = err_set(k->e, ERR_INVALID, "%s", errs.item[0].message);
        else {
            rc = add_lines(k, holds.value != 0 ? line->body : line->otherwise);
            continue;
        }
        if (rc)
            err_wrap(k->e, "%s:%d:%d", k->sizes->program->name, line->at.line, line->at.column);
    }
    return rc;
}

// ---- accounts ------------------------------------------------------------------------------------

static int64_t piece_elements(const struct weight_piece *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->natoms; i++)
        n *= x->atom[i].n;
    return n;
}

// Every element of each parameter is named once: its boxes are told apart by the entries that they
// fix, all of the same dimensions, and have as many elements as it has.
static int check_param(struct maker *k, const struct weight_param *p, int n, const int *piece)
{
    const struct mapping *m = k->m;
    struct map seen = {0};
    int64_t elements = 1, named = 0;
    int rc = 0;
    for (int d = 0; d < p->shape.n; d++)
        elements *= p->size[d];
    for (int i = 0; i < n && !rc; i++) {
        const struct weight_piece *x = &m->pieces[piece[i]];
        bool alike = true;
        struct buf key = {0};
        for (int d = 0; d < p->shape.n; d++) {
            alike &= (x->fixed[d] < 0) == (m->pieces[piece[0]].fixed[d] < 0);
            buf_printf(&key, "%" PRId64 " ", x->fixed[d]);
        }
        for (int t = 0; t < x->natoms; t++)
            buf_printf(&key, "%" PRId64 " ", x->atom[t].at[OURS]);
        named += piece_elements(x);
        if (!alike || map_put(&seen, buf_str(&key), &seen))
            rc = err_set(k->e, ERR_INVALID, "%s: `export hf` names a part of %s twice",
                         k->sizes->program->name, p->name);
        buf_clear(&key);
    }
    map_clear(&seen);
    if (!rc && named != elements)
        rc = err_set(k->e, ERR_INVALID,
                     "%s: `export hf` names %" PRId64 " of the %" PRId64 " elements of %s",
                     k->sizes->program->name, named, elements, p->name);
    return rc;
}

// Pieces fill a tensor: as many elements as it has are put into it.
static int check_tensor(struct maker *k, const struct weight_tensor *t, int n, const int *piece)
{
    int64_t elements = 1, put = 0;
    for (int d = 0; d < t->shape.n; d++)
        elements *= t->shape.dim[d];
    for (int i = 0; i < n; i++)
        put += piece_elements(&k->m->pieces[piece[i]]);
    return put == elements
               ? 0
               : err_set(k->e, ERR_INVALID,
                         "%s:%d: %" PRId64 " elements are put into %s, which has %" PRId64,
                         k->sizes->program->name, t->line, put, t->name, elements);
}

static void list_pieces(struct mapping *m, struct arena *a, enum weight_side side, int objects)
{
    int *first = m->first[side] = arena_array(a, int, objects + 2);
    m->piece[side] = arena_array(a, int, m->npieces + 1);
    for (int i = 0; i < m->npieces; i++)
        first[m->pieces[i].object[side] + 2]++;
    for (int i = 2; i < objects + 2; i++)
        first[i] += first[i - 1];
    for (int i = 0; i < m->npieces; i++)
        m->piece[side][first[m->pieces[i].object[side] + 1]++] = i;
}

int mapping_make(struct mapping *m, struct arena *a, const struct model_sizes *sizes,
                 const struct weight_params *params, bool prefixed, struct err *e)
{
    const struct foreign_section *s = foreign_section(sizes->program);
    *m = (struct mapping){.params = *params};
    if (!s)
        return err_set(e, ERR_INVALID, "%s has no section `export hf`", sizes->program->name);
    struct maker k = {.m = m, .a = a, .sizes = sizes, .prefix = prefixed ? s->prefix : "", .e = e};
    for (int i = 0; i < params->n; i++)
        map_put(&k.params, params->param[i].name, &params->param[i]);
    int rc = add_lines(&k, s->tensors);
    list_pieces(m, a, OURS, params->n);
    list_pieces(m, a, THEIRS, m->ntensors);
    for (int i = 0; i < params->n && !rc; i++)
        rc = check_param(&k, &params->param[i], m->first[OURS][i + 1] - m->first[OURS][i],
                         m->piece[OURS] + m->first[OURS][i]);
    for (int i = 0; i < m->ntensors && !rc; i++)
        rc = check_tensor(&k, &m->tensors[i], m->first[THEIRS][i + 1] - m->first[THEIRS][i],
                          m->piece[THEIRS] + m->first[THEIRS][i]);
    map_clear(&k.params);
    map_clear(&k.tensors);
    return rc;
}

void mapping_same(struct mapping *m, struct arena *a, const struct weight_params *params)
{
    *m = (struct mapping){.params = *params, .ntensors = params->n, .npieces = params->n};
    m->tensors = arena_array(a, struct weight_tensor, params->n + 1);
    m->pieces = arena_array(a, struct weight_piece, params->n + 1);
    for (int i = 0; i < params->n; i++) {
        const struct weight_param *p = &params->param[i];
        struct weight_tensor *t = &m->tensors[i];
        t->name = p->name;
        t->shape.n = p->shape.n;
        memcpy(t->shape.dim, p->size, sizeof t->shape.dim);
        t->view = t->shape;
        m->pieces[i] = (struct weight_piece){.object = {i, i}, .natoms = p->shape.n};
        for (int d = 0; d < MAX_DIMS; d++) {
            m->pieces[i].fixed[d] = -1;
            m->pieces[i].atom[d] = (struct weight_atom){p->size[d], {d, d}, {0, 0}, {1, 1}};
        }
    }
    list_pieces(m, a, OURS, params->n);
    list_pieces(m, a, THEIRS, params->n);
}
