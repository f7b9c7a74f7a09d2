// SPDX-License-Identifier: Apache-2.0
// The list of findings. See findings.h.
#include "common/explain/findings.h"

#include <string.h>

static const struct {
    const char *name;
    enum { ERROR, WARNING, NOTE } severity;
} codes[FINDING_CODES] = {
#define X(id, severity) [FINDING_##id] = {#id, severity},
    FINDING_TABLE(X)
#undef X
};

const char *finding_name(enum finding_code c)
{
    return codes[c].name;
}

bool finding_is_error(enum finding_code c)
{
    return codes[c].severity == ERROR;
}

const char *finding_severity(enum finding_code c)
{
    static const char *const names[] = {[ERROR] = "error", [WARNING] = "warning", [NOTE] = "note"};
    return names[codes[c].severity];
}

void findings_init(struct findings *f, const struct job *job, struct arena *a)
{
    *f = (struct findings){.arena = a, .job = job};
}

// Returns the job's line of what the fix would change (not of what does not fit: its ways out are
// many, and no line of theirs is its cause) or, for an axis of which no key speaks, the
// mesh's line.
static int find_line(const struct findings *f, const struct finding *one)
{
    if (one->code == FINDING_DOES_NOT_FIT)
        return 0;
    int line = one->fix ? job_line(f->job, one->fix, strcspn(one->fix, "=")) : 0;
    return line || !one->axes ? line : job_line(f->job, "mesh", strlen("mesh"));
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

void findings_add(struct findings *f, const struct finding *one)
{
    for (int i = 0; i < f->n; i++)
        if (f->items[i].code == one->code && f->items[i].axes == one->axes &&
            same_text(f->items[i].tensor, one->tensor))
            return;
    f->items = arena_grow(f->arena, f->items, sizeof *f->items, f->n, &f->cap);
    struct finding *item = &f->items[f->n++];
    int line = find_line(f, one);
    *item = *one;
    if (line && !strstr(one->message, "(line "))
        item->message = arena_printf(f->arena, "%s (line %d)", one->message, line);
    f->errors += finding_is_error(one->code);
}

void findings_say(struct findings *f, struct finding one, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    one.message = arena_vprintf(f->arena, fmt, ap);
    va_end(ap);
    findings_add(f, &one);
}

const struct finding *findings_first_error(const struct findings *f)
{
    for (int i = 0; i < f->n; i++)
        if (finding_is_error(f->items[i].code))
            return &f->items[i];
    return NULL;
}

axis_set findings_blamed_axes(const struct findings *f)
{
    axis_set axes = 0;
    for (int i = 0; i < f->n; i++)
        if (finding_is_error(f->items[i].code) && f->items[i].code != FINDING_UNUSED_AXIS)
            axes |= f->items[i].axes;
    return axes;
}

const char *findings_name_buffer(const struct program *p, const struct buffer *b, struct arena *a)
{
    const struct graph *g = p->graph;
    if (b->name)
        return b->name;
    const struct value *v = &g->values[b->value];
    if (v->producer < 0)
        return v->name ? v->name : "-";
    const struct node *n = &g->nodes[v->producer];
    return arena_printf(a, "%s of %s", n->kind == NODE_OP ? op_name(n->op) : "moved",
                        g->scopes[n->scope]);
}
