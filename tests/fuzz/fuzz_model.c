// SPDX-License-Identifier: Apache-2.0
// Texts of programs: whatever is read can be built, or is refused with a place in the text; what is
// built is a graph that the compiler accepts, the same each time, of as many layers as were counted
// without it.
#include <stdlib.h>
#include <string.h>

#include "common/language/model_facts.h"
#include "common/model/builder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_places(const struct model_errors *errs, const char *text, size_t len)
{
    int lines = 2; // the end may be reported on a line of its own
    for (size_t i = 0; i < len; i++)
        lines += text[i] == '\n';
    for (int i = 0; i < errs->n; i++)
        must(errs->item[i].at.line >= 1 && errs->item[i].at.line <= lines &&
             errs->item[i].at.column >= 1);
}

static int build(struct arena *a, const struct model_sizes *sizes, enum program_kind kind,
                 struct graph *g, struct err *e)
{
    const struct model_run run = {.kind = kind, .batch = 2, .step_batch = 4, .seed = 1};
    struct dims *dims = arena_new(a, struct dims);
    dims_init(dims, a);
    graph_init(g, a, dims, e);
    g->compute = DT_BF16;
    int rc = model_build(g, sizes, &run);
    must(rc != ERR_INTERNAL);
    must(rc || (g->loss >= 0 && g->nnodes <= MODEL_MAX_NODES));
    return rc;
}

// Built twice it is the same.
static void build_each(struct arena *a, const struct model_sizes *sizes)
{
    for (int k = 0; k <= PROGRAM_SCORE; k++) {
        struct graph g, again;
        struct err e = {0};
        int first = build(a, sizes, (enum program_kind)k, &g, &e);
        must(first || g.nlayers <= MODEL_MAX_LAYERS);
        must(build(a, sizes, (enum program_kind)k, &again, &e) == first);
        must(g.nnodes == again.nnodes && g.nvalues == again.nvalues);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {0};
    struct model_errors errs = {.arena = &a};
    const struct model_program *p;
    struct model_sizes sizes;
    struct model_facts facts;
    int rc = model_program_read("input", (const char *)bytes, len, &p, &errs);
    must((rc == 0) == (errs.n == 0) && (rc == 0) == (p != NULL));
    check_places(&errs, (const char *)bytes, len);
    if (!rc) {
        must(model_sizes_resolve(p, NULL, 0, &sizes, &errs) == 0);
        model_facts_find(&sizes, &facts);
        build_each(&a, &sizes);
    }
    arena_clear(&a);
    return 0;
}
