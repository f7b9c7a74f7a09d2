// SPDX-License-Identifier: Apache-2.0
// One product by cuBLASLt. See product.h.
//
// 2mnk FLOPs a batch. Memory traffic is a, b and out once each, if the algorithm uses the caches
// well. The library's kernels are the best there are for these shapes: it proposes several, we time
// them on the device and keep the fastest.
//
// Algorithms that read f32 in fewer bits than the product allows are left out. So are, on a device
// that must be deterministic, those whose sums depend on scheduling: of algorithms that split a
// sum, only those remain that add the parts in a separate step, in f32. Choices made on a device
// that need not be deterministic are stored under another owner (algos.h), so that they never mix.
#include "kernels/cuda/product.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/map.h"
#include "kernels/cuda/algos.h"
#include "kernels/cuda/contest.h"

static const char NONE[] = "none"; // the choice to use no algorithm

struct gemm_state {
    cublasLtHandle_t lt;
    struct map plans; // key → struct plan
    struct algos imported, settled, disk;
    char *folder; // of the cache; null: none
    bool unsaved;
    struct contest contest;
};

// ---- the device's state ------------------------------------------------------------------------

const char *gemm_version(void)
{
    static char text[32];
    size_t v = cublasLtGetVersion();
    snprintf(text, sizeof text, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return text;
}

int gemm_open(struct device *d, struct err *e)
{
    struct gemm_state *s = calloc(1, sizeof *s);
    char owner[384], switches[SWITCHES_SIZE];
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a device's products");
    d->gemm = s;
    switches_print(d->switches, switches);
    snprintf(owner, sizeof owner, "%s, sm_%d%d, %d processors, cublaslt %s%s%s", d->model, d->major,
             d->minor, d->processors, gemm_version(), d->deterministic ? "" : ", not deterministic",
             switches);
    algos_init(&s->imported, owner);
    algos_init(&s->settled, owner);
    algos_init(&s->disk, owner);
    int rc = LT(e, cublasLtCreate(&s->lt));
    return rc ? rc : contest_open(&s->contest, d, e);
}

void gemm_close(struct device *d)
{
    struct gemm_state *s = d->gemm;
    if (!s)
        return;
    for (size_t i = 0; i < s->plans.cap; i++)
        if (s->plans.slots[i].key)
            free(s->plans.slots[i].value);
    map_clear(&s->plans);
    algos_clear(&s->imported);
    algos_clear(&s->settled);
    algos_clear(&s->disk);
    contest_close(&s->contest);
    if (s->lt)
        cublasLtDestroy(s->lt);
    free(s->folder);
    free(s);
    d->gemm = NULL;
}

void gemm_cache(struct device *d, const char *folder)
{
    struct gemm_state *s = d->gemm;
    free(s->folder);
    s->folder = heap_strdup(folder);
    algos_load(&s->disk, folder);
}

int algorithms_read(struct device *d, const char *text, struct err *e)
{
    return algos_read(&d->gemm->imported, text, e);
}

int algorithms_write(struct device *d, struct buf *out, struct err *e)
{
    struct gemm_state *s = d->gemm;
    struct algos all;
    struct err why = {0};
    (void)e;
    algos_init(&all, s->settled.owner);
    for (int i = 0; i < s->imported.n; i++)
        algos_put(&all, s->imported.line[i].key, s->imported.line[i].choice, 0);
    for (int i = 0; i < s->settled.n; i++)
        algos_put(&all, s->settled.line[i].key, s->settled.line[i].choice, 0);
    algos_print(&all, false, out);
    algos_clear(&all);
    if (s->unsaved && s->folder && algos_save(&s->disk, s->folder, &why))
        log_warn("cuda", "timings of algorithms are not kept: %s", why.text);
    s->unsaved = false;
    return 0;
}

void algorithms_note(struct device *d, const char *key, const char *choice)
{
    algos_put(&d->gemm->settled, key, choice, 0);
}

// ---- keys and choices --------------------------------------------------------------------------

static void print_key(const struct product *p, char key[PLAN_KEY])
{
    static const char *const ends[] = {
#define X(id, name, lt) [END_##id] = #name,
        PRODUCT_ENDS(X)
#undef X
    };
    const struct gemm *g = &p->g;
    bool biased = p->bias != NULL;
    int n = snprintf(
        key, PLAN_KEY, "%lldx%lldx%lld*%lld %c%c %lld,%lld,%lld %lld,%lld,%lld %s>%s%s%s",
        (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->batch,
        g->trans_a ? 't' : 'n', g->trans_b ? 't' : 'n', (long long)g->lda, (long long)g->ldb,
        (long long)g->ldc, (long long)g->stride_a, (long long)g->stride_b, (long long)g->stride_c,
        dtype_name(p->in), dtype_name(p->to), p->tf32 ? " tf32" : "",
        !p->c            ? ""
        : p->c == p->out ? " adds"
                         : " plus");
    n += snprintf(key + n, PLAN_KEY - (size_t)n, " %s", ends[p->end]);
    if (biased)
        n += snprintf(key + n, PLAN_KEY - (size_t)n, ",%lld", (long long)p->bias_stride);
    n += snprintf(key + n, PLAN_KEY - (size_t)n, " @%u,%u,%u,%u", layout_alignment(p->a),
                  layout_alignment(p->b), layout_alignment(p->out), layout_alignment(p->c));
    // Nearly all calls have the usual scratch. With less only some algorithms can run, so the key
    // says how much there is. A call with more takes what was timed with the usual scratch.
    if (layout_scratch(p) < GEMM_WORKSPACE)
        snprintf(key + n, PLAN_KEY - (size_t)n, " %zu", layout_scratch(p));
}

// Whether the caller can run a plain product and a kernel behind it instead. "none" is a valid
// choice then.
static bool is_optional(const struct product *p)
{
    return p->end != END_NONE || (p->c && p->c != p->out);
}

// ---- choosing ----------------------------------------------------------------------------------

// Takes the choice that a table has for the plan's key. False: it has none, or one that cannot run.
static bool take_choice(const struct product *p, struct plan *plan, const struct algos *from)
{
    const char *choice = algos_get(from, plan->key);
    plan->n = plan->at = 0;
    if (!choice)
        return false;
    if (is_optional(p) && strcmp(choice, NONE) == 0)
        return true;
    if (!choice_read(choice, &plan->algo[0]) || !plan_takes(plan, p, &plan->algo[0]))
        return false;
    plan->n = 1;
    return true;
}

// Returns the product with no more scratch than WEFT_CUDA_SCRATCH allows.
static struct product limit_scratch(const struct device *d, const struct product *asked)
{
    struct product p = *asked;
    size_t most = (size_t)d->switches[SWITCH_SCRATCH] << 20;
    p.workspace_bytes = p.workspace_bytes < most ? p.workspace_bytes : most;
    return p;
}

static int get_plan(struct device *d, const struct product *p, struct plan **out, struct err *e)
{
    struct gemm_state *s = d->gemm;
    char key[PLAN_KEY];
    print_key(p, key);
    *out = map_get(&s->plans, key);
    if (*out)
        return layout_end(p, &(*out)->layout, e);
    // From cuBLASLt 13.3 on a question for algorithms fails while a stream is captured.
    if (d->captures)
        return err_set(e, ERR_UNSUPPORTED,
                       "cuda: nobody chose an algorithm for the product %s before this capture: "
                       "tune it first",
                       key);
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return err_set(e, ERR_NOMEM, "no memory for a product");
    memcpy(plan->key, key, sizeof key);
    plan->lt = s->lt;
    int rc = layout_make(p, &plan->layout, e);
    if (!rc && !take_choice(p, plan, &s->imported))
        rc = plan_propose(plan, d, p, e);
    if (rc) {
        free(plan);
        return rc;
    }
    map_put(&s->plans, key, plan);
    *out = plan;
    return 0;
}

static void settle_plan(struct gemm_state *s, struct plan *plan)
{
    char choice[CHOICE_SIZE] = "";
    bool any = plan->at < plan->n;
    if (any)
        choice_print(&plan->algo[plan->at], choice);
    plan->settled = true;
    algos_put(&s->settled, plan->key, any ? choice : NONE, 0);
}

// ---- running -----------------------------------------------------------------------------------

// Runs the current candidate. Until one has run, a candidate that fails is replaced by the next.
static int run_plan(struct stream_q *q, const struct product *p, struct plan *plan, bool *ran,
                    struct err *e)
{
    *ran = false;
    while (plan->at < plan->n) {
        cublasStatus_t rc = plan_launch(plan, q, p, &plan->algo[plan->at]);
        if (rc == CUBLAS_STATUS_SUCCESS)
            *ran = true;
        if (rc == CUBLAS_STATUS_SUCCESS || plan->settled || !plan_declined(q, rc))
            return plan_ran(q, rc, e);
        plan->at++;
    }
    if (is_optional(p))
        return 0;
    return err_set(e, ERR_DEVICE, "cuda: cublaslt %s has no algorithm for the product %s",
                   gemm_version(), plan->key);
}

int product_run(struct stream_q *q, const struct product *asked, bool *ran, struct err *e)
{
    const struct product p = limit_scratch(q->device, asked);
    struct plan *plan;
    int rc = get_plan(q->device, &p, &plan, e);
    rc = rc ? rc : run_plan(q, &p, plan, ran, e);
    if (!rc && !plan->settled)
        settle_plan(q->device->gemm, plan);
    return rc;
}

// Tries the choice that a table has for the key. *found: the choice runs here, or it is "none".
static int try_table(struct stream_q *q, const struct product *p, struct plan *plan,
                     const struct algos *from, bool *found, struct err *e)
{
    *found = false;
    if (!take_choice(p, plan, from))
        return 0;
    cublasStatus_t rc =
        plan->n ? plan_launch(plan, q, p, &plan->algo[plan->at]) : CUBLAS_STATUS_SUCCESS;
    *found = rc == CUBLAS_STATUS_SUCCESS;
    return *found || plan_declined(q, rc) ? 0 : plan_ran(q, rc, e);
}

// Chooses among the library's proposals: the fastest if they are timed, else the first that runs.
static int choose_algorithm(struct stream_q *q, const struct product *p, struct plan *plan,
                            bool time, struct err *e)
{
    struct gemm_state *s = q->device->gemm;
    char choice[CHOICE_SIZE];
    double us = 0;
    bool ran;
    int rc = plan_propose(plan, q->device, p, e);
    if (!rc && time)
        rc = contest_hold(&s->contest, q, p, plan, &us, e);
    if (!rc)
        rc = run_plan(q, p, plan, &ran, e);
    if (!rc && !ran && p->sums) // no warning: nothing counts on such a kernel
        log_info("cuda", "%s: the library has no kernel with these sums", plan->key);
    else if (!rc && !ran)
        log_warn("cuda", "%s: the library declined what follows the product", plan->key);
    if (rc || !ran || !time)
        return rc;
    choice_print(&plan->algo[plan->at], choice);
    algos_put(&s->disk, plan->key, choice, us);
    s->unsaved = true;
    return 0;
}

int product_tune(struct stream_q *q, const struct product *asked, bool time,
                 enum product_choice *how, struct err *e)
{
    const struct product p = limit_scratch(q->device, asked);
    struct gemm_state *s = q->device->gemm;
    struct plan *plan;
    bool found = false;
    int rc = get_plan(q->device, &p, &plan, e);
    *how = PRODUCT_KNOWN;
    if (!rc && !plan->settled) {
        rc = try_table(q, &p, plan, &s->imported, &found, e);
        if (!rc && !found && time)
            rc = try_table(q, &p, plan, &s->disk, &found, e);
        if (!rc && !found) {
            *how = time ? PRODUCT_TIMED : PRODUCT_KNOWN;
            rc = choose_algorithm(q, &p, plan, time, e);
        }
        if (!rc)
            settle_plan(s, plan);
    }
    if (!rc && plan->at == plan->n)
        *how = PRODUCT_NONE;
    return rc ? rc : CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
}

// ---- one kernel or two -------------------------------------------------------------------------

struct whole {
    struct stream_q *q;
    const struct product *p;
};

static int run_whole(void *ctx, struct err *e)
{
    const struct whole *t = ctx;
    bool ran;
    return product_run(t->q, t->p, &ran, e);
}

// Logs that one kernel takes `us` µs for p and what follows it, and the product and a kernel of its
// own behind it `two_us` µs together. If these are faster, p's key has no algorithm from now on.
static int settle_kernels(struct stream_q *q, const struct product *asked, double us, double two_us,
                          struct err *e)
{
    const struct product p = limit_scratch(q->device, asked);
    struct gemm_state *s = q->device->gemm;
    struct plan *plan;
    int rc = get_plan(q->device, &p, &plan, e);
    if (rc)
        return rc;
    log_info("cuda", "%s: with what follows it in one kernel %.1f us, in two %.1f", plan->key, us,
             two_us);
    if (two_us >= us)
        return 0;
    plan->n = plan->at = 0;
    settle_plan(s, plan);
    algos_put(&s->disk, plan->key, NONE, 0);
    s->unsaved = true;
    return 0;
}

int product_compare(struct stream_q *q, const struct product *p,
                    int (*two)(void *ctx, struct err *e), void *ctx, struct err *e)
{
    struct whole t = {q, p};
    struct contest *c = &q->device->gemm->contest;
    double us, two_us;
    int rc = contest_time(c, q, run_whole, &t, &us, e);
    rc = rc ? rc : contest_time(c, q, two, ctx, &two_us, e);
    return rc ? rc : settle_kernels(q, p, us, two_us, e);
}
