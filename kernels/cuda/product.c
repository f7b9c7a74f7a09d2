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

#include "common/base/log.h"
#include "common/base/map.h"
#include "kernels/cuda/algos.h"
#include "kernels/cuda/layout.h"

enum {
    CANDIDATES = SWITCH_CANDIDATES_MOST, // that the library is asked for
    KEY_SIZE = 320,
    WORDS = 8,
    CHOICE_SIZE = WORDS * 16 + 1
};
static const char NONE[] = "none"; // the choice that there is none

// The algorithms for one key. They are tried in order, from `at` on, until the plan is settled.
struct plan {
    char key[KEY_SIZE];
    struct layout layout;
    cublasLtMatmulAlgo_t algo[CANDIDATES];
    int n, at;
    bool settled;
};

struct gemm_state {
    cublasLtHandle_t lt;
    struct map plans; // key → struct plan
    struct algos imported, settled, disk;
    char *folder; // of the cache; null: none
    bool unsaved;
    cudaEvent_t begin, end; // of the stopwatch
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
    rc = rc ? rc : CUDA(d, NULL, e, cudaEventCreate(&s->begin));
    return rc ? rc : CUDA(d, NULL, e, cudaEventCreate(&s->end));
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
    if (s->begin)
        cudaEventDestroy(s->begin);
    if (s->end)
        cudaEventDestroy(s->end);
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
    s->folder = strdup(folder);
    PRE(s->folder);
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

static void print_key(const struct product *p, char key[KEY_SIZE])
{
    static const char *const ends[] = {
#define X(id, name, lt) [END_##id] = #name,
        PRODUCT_ENDS(X)
#undef X
    };
    const struct gemm *g = &p->g;
    bool biased = p->bias != NULL;
    int n = snprintf(
        key, KEY_SIZE, "%lldx%lldx%lld*%lld %c%c %lld,%lld,%lld %lld,%lld,%lld %s>%s%s%s",
        (long long)g->m, (long long)g->n, (long long)g->k, (long long)g->batch,
        g->trans_a ? 't' : 'n', g->trans_b ? 't' : 'n', (long long)g->lda, (long long)g->ldb,
        (long long)g->ldc, (long long)g->stride_a, (long long)g->stride_b, (long long)g->stride_c,
        dtype_name(p->in), dtype_name(p->to), p->tf32 ? " tf32" : "",
        !p->c            ? ""
        : p->c == p->out ? " adds"
                         : " plus");
    n += snprintf(key + n, KEY_SIZE - (size_t)n, " %s", ends[p->end]);
    if (biased)
        n += snprintf(key + n, KEY_SIZE - (size_t)n, ",%lld", (long long)p->bias_stride);
    n += snprintf(key + n, KEY_SIZE - (size_t)n, " @%u,%u,%u,%u", layout_alignment(p->a),
                  layout_alignment(p->b), layout_alignment(p->out), layout_alignment(p->c));
    // Nearly all calls have the usual scratch; of a call that has less only some algorithms can run.
    // What was timed with the usual stands for one that has more.
    if (layout_scratch(p) < GEMM_WORKSPACE)
        snprintf(key + n, KEY_SIZE - (size_t)n, " %zu", layout_scratch(p));
}

static void print_choice(const cublasLtMatmulAlgo_t *algo, char choice[CHOICE_SIZE])
{
    for (int i = 0; i < WORDS; i++)
        snprintf(choice + i * 16, 17, "%016llx", (unsigned long long)algo->data[i]);
}

static bool read_choice(const char *choice, cublasLtMatmulAlgo_t *algo)
{
    char word[17] = "", *end;
    if (strlen(choice) != CHOICE_SIZE - 1)
        return false;
    for (int i = 0; i < WORDS; i++) {
        memcpy(word, choice + i * 16, 16);
        algo->data[i] = strtoull(word, &end, 16);
        if (*end)
            return false;
    }
    return true;
}

// ---- candidates --------------------------------------------------------------------------------

// Whether an algorithm's numbers are those that the product asks for: f32 read whole, or as
// tf32.
static bool is_exact(const struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    const uint64_t fewer = CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F |
                           CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF |
                           (p->tf32 ? 0 : CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
    uint64_t flags = 0;
    size_t n = 0;
    cublasStatus_t rc = cublasLtMatmulAlgoCapGetAttribute(
        algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags, &n);
    if (rc != CUBLAS_STATUS_SUCCESS || flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F)
        return false;
    return p->in != DT_F32 || !(flags & fewer);
}

// Whether an algorithm from a table can run this product on this device.
static bool is_valid(struct gemm_state *s, const struct product *p, struct layout *l,
                     const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r;
    cublasStatus_t rc =
        cublasLtMatmulAlgoCheck(s->lt, &l->op, &l->a, &l->b, &l->d, &l->d, algo, &r);
    return rc == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= layout_scratch(p) && is_exact(p, algo);
}

// Whether the status means that the library has no kernel for the product, here or on any device.
static bool is_unsuited(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE ||
           rc == CUBLAS_STATUS_ARCH_MISMATCH;
}

// Asks the library for algorithms; they come best first. Finding none is no error: n is 0 then.
static int find_candidates(struct device *d, const struct product *p, struct plan *plan,
                           struct err *e)
{
    cublasLtMatmulHeuristicResult_t r[CANDIDATES];
    struct layout *l = &plan->layout;
    struct preference f;
    int n = 0, rc = layout_preference(p, d->deterministic, &f, e);
    plan->n = plan->at = 0;
    if (rc)
        return rc;
    cublasStatus_t said =
        cublasLtMatmulAlgoGetHeuristic(d->gemm->lt, &l->op, &l->a, &l->b, &l->d, &l->d, &f.p,
                                       d->switches[SWITCH_CANDIDATES], r, &n);
    if (said != CUBLAS_STATUS_SUCCESS && !is_unsuited(said))
        return layout_check("cublasLtMatmulAlgoGetHeuristic", said, e);
    for (int i = 0; i < n && said == CUBLAS_STATUS_SUCCESS; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && r[i].workspaceSize <= layout_scratch(p) &&
            is_exact(p, &r[i].algo))
            plan->algo[plan->n++] = r[i].algo;
    return 0;
}

// Whether the caller can do without this product, by a plain one and a kernel behind it. "None" is
// a valid choice then.
static bool is_optional(const struct product *p)
{
    return p->end != END_NONE || (p->c && p->c != p->out);
}

// ---- choosing ----------------------------------------------------------------------------------

// Takes the choice that a table has for the plan's key. False: it has none, or one that cannot run.
static bool take_choice(struct gemm_state *s, const struct product *p, struct plan *plan,
                        const struct algos *from)
{
    const char *choice = algos_get(from, plan->key);
    plan->n = plan->at = 0;
    if (!choice)
        return false;
    if (is_optional(p) && strcmp(choice, NONE) == 0)
        return true;
    if (!read_choice(choice, &plan->algo[0]) || !is_valid(s, p, &plan->layout, &plan->algo[0]))
        return false;
    plan->n = 1;
    return true;
}

// A product as asked, with no more scratch than an algorithm may have here.
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
    char key[KEY_SIZE];
    print_key(p, key);
    *out = map_get(&s->plans, key);
    if (*out)
        return layout_end(p, &(*out)->layout, e);
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return err_set(e, ERR_NOMEM, "no memory for a product");
    memcpy(plan->key, key, sizeof key);
    int rc = layout_make(p, &plan->layout, e);
    if (!rc && !take_choice(s, p, plan, &s->imported))
        rc = find_candidates(d, p, plan, e);
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
        print_choice(&plan->algo[plan->at], choice);
    plan->settled = true;
    algos_put(&s->settled, plan->key, any ? choice : NONE, 0);
}

// ---- running -----------------------------------------------------------------------------------

static cublasStatus_t launch_product(struct stream_q *q, const struct product *p, struct plan *plan)
{
    const float one = 1, beta = p->c ? 1 : 0;
    struct layout *l = &plan->layout;
    size_t scratch = layout_scratch(p);
    return cublasLtMatmul(q->device->gemm->lt, &l->op, &one, p->b, &l->a, p->a, &l->b, &beta,
                          p->c ? p->c : p->out, &l->d, p->out, &l->d, &plan->algo[plan->at],
                          scratch ? p->workspace : NULL, scratch, q->stream);
}

// Waits for the stream and returns the device's error, or 0 if all is well. While a capture is
// under way this returns 0 unasked, because asking would end the capture.
static int device_asked(struct stream_q *q, struct err *e)
{
    return q->device->captures ? 0 : CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
}

// Whether another algorithm may succeed where this one failed: the library has no kernel for it, or
// could not start it although the device is well.
static bool has_declined(struct stream_q *q, cublasStatus_t rc)
{
    bool broke = rc == CUBLAS_STATUS_EXECUTION_FAILED || rc == CUBLAS_STATUS_INTERNAL_ERROR;
    bool declined = is_unsuited(rc) || (broke && !device_asked(q, NULL));
    if (declined)
        (void)cudaGetLastError(); // what its start left behind is not the next launch's error
    return declined;
}

// Turns a failed launch into an error. If the device has failed its own error is reported, since it
// names the cause; the library's status then says nothing.
static int ran_or_why(struct stream_q *q, cublasStatus_t rc, struct err *e)
{
    int device = rc == CUBLAS_STATUS_SUCCESS ? 0 : device_asked(q, e);
    return device ? device : layout_check("cublasLtMatmul", rc, e);
}

// Runs the current candidate. Until one has run, a candidate that fails is replaced by the next.
static int run_plan(struct stream_q *q, const struct product *p, struct plan *plan, bool *ran,
                    struct err *e)
{
    *ran = false;
    while (plan->at < plan->n) {
        cublasStatus_t rc = launch_product(q, p, plan);
        if (rc == CUBLAS_STATUS_SUCCESS)
            *ran = true;
        if (rc == CUBLAS_STATUS_SUCCESS || plan->settled || !has_declined(q, rc))
            return ran_or_why(q, rc, e);
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

// ---- timing ------------------------------------------------------------------------------------

// MOST_US: of a product's first runs, by the device's clock. Candidates come best first: what is
// not reached by then is slower, or too slow to be tried for all of a program's products.
enum { ROUNDS = 3, MOST_RUNS = 10, ROUND_US = 2000, MOST_US = 500000 };

// How often a round runs what takes so long once.
static int count_runs(double us)
{
    return us > 0 && us * MOST_RUNS > ROUND_US ? (int)(ROUND_US / us) + 1 : MOST_RUNS;
}

// Notes the end of what is timed, waits for it and tells how long it took.
static int stop_watch(struct stream_q *q, float *ms, struct err *e)
{
    struct gemm_state *s = q->device->gemm;
    int rc = CUDA(q->device, q, e, cudaEventRecord(s->end, q->stream));
    rc = rc ? rc : CUDA(q->device, q, e, cudaEventSynchronize(s->end));
    return rc ? rc : CUDA(q->device, q, e, cudaEventElapsedTime(ms, s->begin, s->end));
}

static int time_round(struct stream_q *q, int runs, int (*run)(void *ctx, struct err *e), void *ctx,
                      double *us, struct err *e)
{
    float ms = 0;
    int rc = CUDA(q->device, q, e, cudaEventRecord(q->device->gemm->begin, q->stream));
    for (int i = 0; i < runs && !rc; i++)
        rc = run(ctx, e);
    if (!rc)
        rc = stop_watch(q, &ms, e);
    *us = (double)ms * 1000 / runs;
    return rc;
}

// The time of one `run`, in µs: the best of a few rounds.
static int time_best(struct stream_q *q, int (*run)(void *ctx, struct err *e), void *ctx,
                     double *us, struct err *e)
{
    double once = 0;
    int rc = run(ctx, e); // what is loaded or made at the first run is not timed
    rc = rc ? rc : time_round(q, 1, run, ctx, &once, e);
    *us = 0;
    for (int i = 0; i < ROUNDS && !rc; i++) {
        double now;
        rc = time_round(q, count_runs(once), run, ctx, &now, e);
        *us = i == 0 || now < *us ? now : *us;
    }
    return rc;
}

struct trial {
    struct stream_q *q;
    const struct product *p;
    struct plan *plan;
};

static int run_trial(void *ctx, struct err *e)
{
    const struct trial *t = ctx;
    return ran_or_why(t->q, launch_product(t->q, t->p, t->plan), e);
}

// Beside a plan's algorithms, in their order.
struct timed {
    double us[CANDIDATES]; // one run
    int place[CANDIDATES]; // among those that the library named and that may be used, from 0
    int named;             // how many those are
};

// Times one run of each candidate, and sorts them by it. Those that decline are left out, and those
// behind the budget.
static int sort_candidates(struct stream_q *q, const struct product *p, struct plan *plan,
                           struct timed *to, struct err *e)
{
    struct trial t = {q, p, plan};
    double now, spent = 0;
    int n = plan->n, sorted = 0;
    to->named = n;
    for (plan->at = 0; plan->at < n && spent < MOST_US; plan->at++) {
        cublasStatus_t said = launch_product(q, p, plan); // the first run loads the kernel
        if (has_declined(q, said))
            continue;
        int rc = ran_or_why(q, said, e);
        if (!rc)
            rc = time_round(q, 1, run_trial, &t, &now, e);
        if (rc)
            return rc;
        const cublasLtMatmulAlgo_t algo = plan->algo[plan->at];
        int i = sorted++;
        for (; i > 0 && to->us[i - 1] > now; i--) {
            to->us[i] = to->us[i - 1];
            to->place[i] = to->place[i - 1];
            plan->algo[i] = plan->algo[i - 1];
        }
        to->us[i] = now;
        to->place[i] = plan->at;
        plan->algo[i] = algo;
        spent += 2 * now;
    }
    plan->n = sorted;
    return 0;
}

// Leaves the fastest of one run, and behind them the one that the library named first, which tells
// what its order is worth. Returns where that one is.
static int keep_finalists(struct plan *plan, struct timed *t, int most)
{
    int first = 0;
    for (int i = 1; i < plan->n; i++)
        first = t->place[i] < t->place[first] ? i : first;
    plan->n = plan->n < most ? plan->n : most;
    if (first < plan->n || !plan->n)
        return first;
    t->us[plan->n] = t->us[first];
    t->place[plan->n] = t->place[first];
    plan->algo[plan->n] = plan->algo[first];
    return plan->n++;
}

static unsigned read_config(const cublasLtMatmulAlgo_t *algo,
                            cublasLtMatmulAlgoConfigAttributes_t of, size_t bytes)
{
    unsigned value = 0;
    size_t n = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, of, &value, bytes, &n);
    return value;
}

static void log_choice(const struct plan *plan, int place, int named, double us, double first_us)
{
    const cublasLtMatmulAlgo_t *a = &plan->algo[0];
    log_info("cuda",
             "%s: chosen %d of %d (id %u, tile %u, stages %u, split %u, cluster %u): %.1f us, the "
             "library's first %.1f us",
             plan->key, place + 1, named, read_config(a, CUBLASLT_ALGO_CONFIG_ID, 4),
             read_config(a, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
             read_config(a, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
             read_config(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
             read_config(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2), us, first_us);
}

// The fastest candidate becomes the only one. Among so many the clock's luck would decide, so the
// few that were fastest in one run are timed again with more. They take turns: a device that grows
// warm under the load clocks lower, and that must not count against those that come late.
static int find_fastest(struct stream_q *q, const struct product *p, struct plan *plan, double *us,
                        struct err *e)
{
    struct trial t = {q, p, plan};
    struct timed timed = {0};
    double best[CANDIDATES] = {0};
    int fastest = 0, rc = sort_candidates(q, p, plan, &timed, e);
    int first = rc ? 0 : keep_finalists(plan, &timed, q->device->switches[SWITCH_FINALISTS]);
    for (int round = 0; round < ROUNDS && !rc; round++)
        for (plan->at = 0; plan->at < plan->n && !rc; plan->at++) {
            double now;
            rc = time_round(q, count_runs(timed.us[plan->at]), run_trial, &t, &now, e);
            if (round == 0 || now < best[plan->at])
                best[plan->at] = now;
        }
    for (int i = 1; i < plan->n && !rc; i++)
        fastest = best[i] < best[fastest] ? i : fastest;
    plan->algo[0] = plan->algo[fastest];
    if (plan->n && !rc) {
        *us = best[fastest];
        log_choice(plan, timed.place[fastest], timed.named, *us, best[first]);
    }
    plan->n = plan->n > 0;
    plan->at = 0;
    return rc;
}

// Tries the choice that a table has for the key. *found: the choice runs here, or it is "none".
static int try_table(struct stream_q *q, const struct product *p, struct plan *plan,
                     const struct algos *from, bool *found, struct err *e)
{
    *found = false;
    if (!take_choice(q->device->gemm, p, plan, from))
        return 0;
    cublasStatus_t rc = plan->n ? launch_product(q, p, plan) : CUBLAS_STATUS_SUCCESS;
    *found = rc == CUBLAS_STATUS_SUCCESS;
    return *found || has_declined(q, rc) ? 0 : ran_or_why(q, rc, e);
}

// Chooses among the library's proposals: the fastest if they are timed, else the first that runs.
static int choose_algorithm(struct stream_q *q, const struct product *p, struct plan *plan,
                            bool time, struct err *e)
{
    struct gemm_state *s = q->device->gemm;
    char choice[CHOICE_SIZE];
    double us = 0;
    bool ran;
    int rc = find_candidates(q->device, p, plan, e);
    if (!rc && time)
        rc = find_fastest(q, p, plan, &us, e);
    if (!rc)
        rc = run_plan(q, p, plan, &ran, e);
    if (!rc && !ran && p->sums) // welcome where it exists, but nothing counts on it
        log_info("cuda", "%s: the library has no kernel with these sums", plan->key);
    else if (!rc && !ran)
        log_warn("cuda", "%s: the library declined what follows the product", plan->key);
    if (rc || !ran || !time)
        return rc;
    print_choice(&plan->algo[plan->at], choice);
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

// ---- or two kernels ----------------------------------------------------------------------------

static int run_whole(void *ctx, struct err *e)
{
    const struct trial *t = ctx;
    bool ran;
    return product_run(t->q, t->p, &ran, e);
}

// Remembers for p's key that no algorithm is chosen: the product and a kernel of its own behind it
// take `two_us` µs together, one kernel for both takes `us`.
static int drop_choice(struct stream_q *q, const struct product *asked, double us, double two_us,
                       struct err *e)
{
    const struct product p = limit_scratch(q->device, asked);
    struct gemm_state *s = q->device->gemm;
    struct plan *plan;
    int rc = get_plan(q->device, &p, &plan, e);
    if (rc)
        return rc;
    log_info("cuda", "%s: a kernel of its own behind the product is faster: %.1f, not %.1f us",
             plan->key, two_us, us);
    plan->n = plan->at = 0;
    settle_plan(s, plan);
    algos_put(&s->disk, plan->key, NONE, 0);
    s->unsaved = true;
    return 0;
}

int product_compare(struct stream_q *q, const struct product *p,
                    int (*two)(void *ctx, struct err *e), void *ctx, struct err *e)
{
    struct trial t = {.q = q, .p = p};
    double us, two_us;
    int rc = time_best(q, run_whole, &t, &us, e);
    rc = rc ? rc : time_best(q, two, ctx, &two_us, e);
    return rc || two_us >= us ? rc : drop_choice(q, p, us, two_us, e);
}
