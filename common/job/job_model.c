// SPDX-License-Identifier: Apache-2.0
// The model section of a job. See job_model.h.
//
// A program is one that comes with weft, by its name, or a text of the user's own: a file beside the
// job, which is read once, where the job file is. From then on its text is a key of the resolved job:
// of a program that comes with weft too, since a later weft may have another text of that name.
#include "common/job/job_model.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/suggest.h"
#include "common/job/text.h"
#include "common/language/initial.h"
#include "common/language/model_facts.h"

_Static_assert((int)JOB_MAX_SIZES == (int)MODEL_MAX_SIZES, "a row for every size");

#define AT(field) offsetof(struct job_model, field)

static bool is_initial(const char *text)
{
    struct initial read;
    return initial_read(text, &read);
}

static const struct schema_row rows[] = {
    {.path = "model.program",
     .continues = CONTINUE_SAME,
     .type = SCHEMA_STRING,
     .offset = AT(program),
     .doc =
         "the model: one that comes with weft (weft model list), or the path of a text of your "
         "own (weft model new), relative to the job file; its sizes are the section's other keys"},
    {.path = "model.init",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_STRING,
     .offset = AT(init),
     .optional = true,
     .valid = is_initial,
     .doc = "what weights are born with in place of what the program says, but for zeros and ones: "
            "normal(D), truncated(D) or uniform(D) of deviation D, which tables get too, "
            "fan_in(GAIN), he_normal, he_uniform, xavier_normal or xavier_uniform"},
    {.path = "model.text",
     .continues = CONTINUE_REFUSED,
     .type = SCHEMA_TEXT,
     .offset = AT(text),
     .optional = true,
     .doc =
         "the program's text; weft puts it here when it reads the job file, so that the resolved "
         "job needs no other, and a later weft continues with the same model"},
};

const struct schema_table job_model_schema = {rows, sizeof rows / sizeof *rows,
                                              offsetof(struct job, model)};

// A path: no program that comes with weft is called so.
static bool is_path(const char *name)
{
    size_t n = strlen(name);
    return strchr(name, '/') || (n > 6 && strcmp(name + n - 6, ".model") == 0);
}

// ---- the text ----------------------------------------------------------------------------------

static const char *list_programs(struct arena *a)
{
    struct buf all = {0};
    for (const struct model_text *t = model_texts; t->name; t++)
        buf_printf(&all, "%s%s", t == model_texts ? "" : ", ", t->name);
    return buf_keep(&all, a);
}

static const char *find_text(struct reading *r, const struct tree_node *at, const char *name)
{
    const struct model_text *known = model_text_find(name);
    if (known)
        return known->text;
    const char **names = NULL;
    int n = 0, cap = 0;
    for (const struct model_text *t = model_texts; t->name; t++) {
        names = arena_grow(r->arena, names, sizeof *names, n, &cap);
        names[n++] = t->name;
    }
    const char *near = suggest(name, names, n);
    if (near)
        tree_error(&r->errors, at, "model.program",
                   "'%.100s' does not come with weft: did you mean %s?", name, near);
    else
        tree_error(&r->errors, at, "model.program",
                   "'%.100s' does not come with weft, which has %s; a file of your own is written "
                   "as a path, such as ./mine.model",
                   name, list_programs(r->arena));
    return NULL;
}

// The source that errors in the program's own text name.
static const struct tree_source *name_source(struct reading *r, const char *file)
{
    struct tree_source *source = arena_new(r->arena, struct tree_source);
    *source = (struct tree_source){file, JOB_MAX_NODES, false}; // behind the file and all overrides
    return source;
}

static const char *read_own(struct reading *r, const struct tree_node *at, const char *name)
{
    const char *path = job_path(r->job, r->arena, name), *text = NULL;
    struct buf content = {0};
    if (!r->file) {
        tree_error(&r->errors, at, "model.program",
                   "%.100s: a resolved job has the program's text in model.text, this one has not",
                   name);
        return NULL;
    }
    int rc = folder_read_whole(AT_FDCWD, path, false, MODEL_MAX_BYTES, &content, NULL);
    if (rc == ERR_LIMIT)
        tree_error(&r->errors, at, "model.program", "%s: larger than the %d KiB a program may be",
                   path, MODEL_MAX_BYTES >> 10);
    else if (rc)
        tree_error(&r->errors, at, "model.program", "cannot read %s: %s", path, strerror(errno));
    else if (text_check_program(name_source(r, path), buf_str(&content), content.len, &r->errors))
        text = arena_strdup(r->arena, buf_str(&content));
    buf_clear(&content);
    return text;
}

// The setting of one of the section's own rows; null: absent, or no text, which its row reports.
static const char *find_word(const struct tree_node *section, const char *key)
{
    const struct tree_node *node = tree_get(section, key);
    return node && node->kind == TREE_SCALAR && !tree_is_null(node) ? node->text : NULL;
}

// ---- the rows of the sizes ---------------------------------------------------------------------

static const enum schema_type types[] = {[MODEL_WHOLE] = SCHEMA_INT,
                                         [MODEL_NUMBER] = SCHEMA_FLOAT,
                                         [MODEL_LIST] = SCHEMA_INT_LIST,
                                         [MODEL_CHOICE] = SCHEMA_ENUM};

// What a size counts, as its comment says: "tokens of a sample"; of one that begins with "of" it is
// the size's own name. Null: the comment does not say.
static const char *find_unit(const struct model_size *s)
{
    static const char *const units[] = {"blocks",  "experts", "features", "heads",
                                        "ids",     "layers",  "places",   "positions",
                                        "samples", "share",   "tokens"};
    size_t first = strcspn(s->comment, " ,;:");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strlen(units[i]) == first && strncmp(units[i], s->comment, first) == 0)
            return units[i];
    bool own = s->kind == MODEL_WHOLE && !strchr(s->name, '_');
    return own && strncmp(s->comment, "of ", 3) == 0 ? s->name : NULL;
}

int model_rows(const struct model_program *p, struct arena *a, struct schema_row **out)
{
    *out = arena_array(a, struct schema_row, p->nsizes);
    for (int i = 0; i < p->nsizes; i++) {
        const struct model_size *s = &p->sizes[i];
        (*out)[i] = (struct schema_row){.path = arena_printf(a, "model.%s", s->name),
                                        .continues = CONTINUE_FITS,
                                        .type = types[s->kind],
                                        .offset = AT(size[i]),
                                        .def = s->derived ? NULL : s->written,
                                        .derived = s->derived ? s->written : NULL,
                                        .doc = s->comment,
                                        .unit = find_unit(s),
                                        .min = s->words ? 0 : s->min,
                                        .max = s->words ? 0 : s->max,
                                        .below_max = s->below_max,
                                        .min_items = 1,
                                        .max_items = MODEL_MAX_LIST,
                                        .names = s->words};
    }
    return p->nsizes;
}

// A schema like `from` whose model section has the rows of this program too, between its name and its
// text. What a size is without a setting the program says, not the row.
static const struct schema *add_sizes(struct reading *r, const struct schema *from,
                                      const struct model_program *p)
{
    struct schema_row *sizes;
    int own = job_model_schema.n, n = model_rows(p, r->arena, &sizes), at = 0;
    struct schema_row *all = arena_array(r->arena, struct schema_row, own + n);
    all[at++] = rows[0];
    for (int i = 0; i < n; i++, at++) {
        all[at] = sizes[i];
        all[at].derived = p->sizes[i].written;
        all[at].def = NULL;
    }
    for (int i = 1; i < own; i++)
        all[at++] = rows[i];
    struct schema_table *model = arena_new(r->arena, struct schema_table);
    *model = (struct schema_table){all, own + n, job_model_schema.section};
    const struct schema_table **tables =
        arena_array(r->arena, const struct schema_table *, from->n);
    for (int i = 0; i < from->n; i++)
        tables[i] = from->tables[i]->rows == job_model_schema.rows ? model : from->tables[i];
    struct schema *with = arena_new(r->arena, struct schema);
    *with = *from;
    with->tables = tables;
    return with;
}

// ---- the whole ---------------------------------------------------------------------------------

// What is wrong with a program or its sizes, as errors of the job.
static void report_model_errors(struct reading *r, const struct model_errors *errs)
{
    const struct tree_source *source = name_source(r, r->job->model.program);
    for (int i = 0; i < errs->n; i++) {
        const struct model_error *e = &errs->item[i];
        if (e->size && !e->at.line)
            reading_error(r, reading_row(r, arena_printf(r->arena, "model.%s", e->size)), "%s",
                          e->message);
        else
            tree_error_at(&r->errors, source, e->at.line, e->at.column, "%s", e->message);
    }
    if (errs->more)
        tree_error_at(&r->errors, source, 0, 0, "%d more errors", errs->more);
}

// The text that stands beside the program's name; one that an override names has none there.
static const char *take_text(struct tree_node *section, const struct tree_node *program)
{
    const struct tree_node *text = tree_get(section, "text");
    if (text && program->source != text->source && program->source->index)
        tree_drop(section, "text");
    return find_word(section, "text");
}

void open_model(struct reading *r)
{
    struct job_model *m = &r->job->model;
    struct tree_node *section = tree_get(r->root, "model");
    if (!section || section->kind != TREE_MAP || !(m->program = find_word(section, "program")))
        return;
    const struct tree_node *at = tree_get(section, "program");
    const char *text = take_text(section, at);
    if (!text)
        text = is_path(m->program) ? read_own(r, at, m->program) : find_text(r, at, m->program);
    m->text = text = text ? text_lines(r->arena, text) : NULL;
    struct model_errors errs = {.arena = r->arena};
    if (text && !model_program_read(m->program, text, strlen(text), &m->read, &errs)) {
        r->job->schema = r->schema = add_sizes(r, r->schema, m->read);
        if (model_reads_tokens(m->read)) // unless the job says otherwise
            r->job->data.format = JOB_DATA_TOKENS;
    }
    report_model_errors(r, &errs);
}

// ---- what the sizes are ------------------------------------------------------------------------

// The sizes that are given, as text. False: one of them is wrong, which is reported.
static bool list_given(struct reading *r, struct model_given *given, int *n)
{
    *n = 0;
    for (int i = 0; i < r->n; i++) {
        const struct reading_row *row = &r->rows[i];
        const char *name = row->row->path + strlen("model.");
        if (strncmp(row->row->path, "model.", strlen("model.")) != 0 ||
            model_size_find(r->job->model.read, name) < 0)
            continue;
        if (!row->ok)
            return false;
        if (!row->node)
            continue;
        struct model_given *to = &given[(*n)++];
        *to = (struct model_given){.name = name, .text = row->node->text};
        if (row->node->kind != TREE_LIST)
            continue;
        to->text = NULL;
        const char **item = arena_array(r->arena, const char *, row->node->count);
        for (const struct tree_node *x = row->node->first; x; x = x->next)
            item[to->n++] = x->text;
        to->item = item;
    }
    return true;
}

void resolve_model(struct reading *r)
{
    struct job_model *m = &r->job->model;
    struct model_given *given = arena_array(r->arena, struct model_given, MODEL_MAX_SIZES);
    struct model_errors errs = {.arena = r->arena};
    int n;
    if (!m->read || !list_given(r, given, &n))
        return;
    struct model_sizes *sizes = arena_new(r->arena, struct model_sizes);
    struct model_facts *facts = arena_new(r->arena, struct model_facts);
    m->sizes = sizes;
    m->facts = facts;
    if (!model_sizes_resolve(m->read, given, n, sizes, &errs)) {
        if (m->init)
            (void)initial_read(m->init, &sizes->initial); // its row has seen to it that it can be
        for (int i = 0; i < m->read->nsizes; i++) {
            const struct number *x = &m->sizes->value[i].number;
            union job_size *to = &m->size[i];
            switch (m->read->sizes[i].kind) {
            case MODEL_WHOLE:
                to->whole = (int64_t)x->value;
                break;
            case MODEL_NUMBER:
                to->number = x->value;
                break;
            case MODEL_CHOICE:
                to->word = (int)x->value;
                break;
            case MODEL_LIST:
                to->list.n = x->n;
                to->list.items = arena_dup(r->arena, x->item, sizeof *x->item * (size_t)x->n);
                break;
            }
        }
        model_facts_find(sizes, facts);
        r->model_ok = true;
    }
    report_model_errors(r, &errs);
}
