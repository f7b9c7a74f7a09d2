// SPDX-License-Identifier: Apache-2.0
// A job as a cluster's scheduler takes it; see render_job.h.
#include "coordinator/cli/render_job.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/plain.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "coordinator/cli/resolved_job.h"

#define FOR(kind) (1U << RENDER_##kind)
#define PODS      (FOR(JOB) | FOR(JOBSET) | FOR(TRAINJOB))
#define LETTERS   "abcdefghijklmnopqrstuvwxyz"
#define CAPITALS  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS    "0123456789"

// Words of the command line that become names in the output: with which --for they act, and of what they are
// made. They begin with a letter or digit.
static const struct word {
    const char *flag;
    size_t at; // in struct args
    unsigned kinds;
    const char *letters, *is;
} words[] = {
    {"--image", offsetof(struct args, image), PODS, LETTERS CAPITALS DIGITS "._/:@-",
     "the name of an image"},
    {"--claim", offsetof(struct args, claim), PODS, NULL, NULL},
    {"--secret", offsetof(struct args, secret), PODS, LETTERS DIGITS ".-", "the name of a Secret"},
    {"--queue", offsetof(struct args, queue), PODS | FOR(SLURM), LETTERS CAPITALS DIGITS "._-",
     "the name of a queue"},
    {"--user", offsetof(struct args, user), PODS | FOR(SYSTEMD), LETTERS DIGITS "_-",
     "a user: a name for systemd, a number for pods"},
};

static bool is_word(const char *text, const char *letters)
{
    enum { LONGEST = 253 };
    return *text && !strchr("._/:@-", *text) && strlen(text) <= LONGEST &&
           !text[strspn(text, letters)];
}

// Null, or what is wrong with the words.
static const char *check_words(const struct args *f, unsigned kind, struct arena *a)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const struct word *w = &words[i];
        const char *text;
        memcpy(&text, (const char *)f + w->at, sizeof text);
        if (text && !(w->kinds & kind))
            return arena_printf(a, "%s does nothing with this --for", w->flag);
        if (text && w->letters && !is_word(text, w->letters))
            return arena_printf(a, "%s takes %s", w->flag, w->is);
    }
    // Not root, and no octal number for a reader of YAML.
    if (f->user && kind & PODS && (f->user[strspn(f->user, DIGITS)] || *f->user == '0'))
        return "--user takes the number of a user for pods, not 0";
    return NULL;
}

// A text that is one line of printable characters, or of several.
static bool is_printable(const char *text)
{
    size_t n;
    for (; *text; text += n)
        if (!(n = plain_character(text, strlen(text))))
            return false;
    return true;
}

// "NAME" or "NAME:/MOUNT". Null, or what is wrong with it.
static const char *read_claim(const char *text, struct arena *a, struct render_options *o)
{
    o->claim = "weft";
    o->mount = "/weft";
    if (!text)
        return NULL;
    size_t n = strcspn(text, ":");
    o->claim = arena_printf(a, "%.*s", (int)n, text);
    o->mount = text[n] ? text + n + 1 : o->mount;
    size_t len = strlen(o->mount);
    if (is_word(o->claim, LETTERS DIGITS ".-") && *o->mount == '/' && len > 1 &&
        o->mount[len - 1] != '/' && is_printable(o->mount) && !strpbrk(o->mount, ":\n") &&
        !strstr(o->mount, ".."))
        return NULL;
    return "--claim takes NAME:/PATH, a PersistentVolumeClaim and where pods have it";
}

// The flags that the rendered command gets. Pods have the settings in their job file. Null, or what is
// wrong with one.
static const char *read_flags(const struct args *f, struct arena *a, struct render_options *o)
{
    struct render_flag *to = arena_array(a, struct render_flag, ARGS_MAX_SET + 2 * ARGS_MAX_PAIRS);
    for (int i = 0; i < f->nset && 1U << o->kind & ~PODS; i++)
        to[o->nflags++] = (struct render_flag){"-s", f->set[i]};
    for (int i = 0; i < f->sinks.n; i++)
        to[o->nflags++] = (struct render_flag){"--sink", f->sinks.v[i]};
    if (o->kind == RENDER_TRAINJOB && args_pair(&f->sinks, "kubeflow"))
        return "--sink: a TrainJob has its own sink kubeflow";
    for (int i = 0; i < f->notify.n; i++) {
        const char *equals = strchr(f->notify.v[i], '=');
        if (!equals || strncmp(equals, "=@/", 3) != 0)
            return "--notify takes NAME=@/PATH, a file of mode 0600 where the job runs: a URL is a "
                   "secret, and what is rendered is none";
        to[o->nflags++] = (struct render_flag){"--notify", f->notify.v[i]};
    }
    o->flags = to;
    for (int i = 0; i < o->nflags; i++)
        if (!is_printable(to[i].value))
            return arena_printf(a, "%s has control characters", to[i].flag);
    return NULL;
}

// Null, or what is wrong.
static const char *read_options(const struct args *f, enum render_kind kind, struct arena *a,
                                struct render_options *o)
{
    char folder[PATH_MAX];
    *o = (struct render_options){.kind = kind,
                                 .per_node = f->per_node,
                                 .rate = f->write_rate,
                                 .image = f->image ? f->image : "weft:" WEFT_VERSION,
                                 .queue = f->queue,
                                 .secret = f->secret,
                                 .user = f->user};
    const char *wrong = check_words(f, 1U << kind, a);
    wrong = wrong ? wrong : read_claim(f->claim, a, o);
    if (wrong || !realpath(f->pos[0], folder)) // the file itself is missed by who reads it
        return wrong;
    o->file = arena_strdup(a, folder);
    *strrchr(folder, '/') = 0;
    o->folder = arena_strdup(a, *folder ? folder : "/");
    if (1U << kind & ~PODS && !is_printable(o->file))
        return "the path of the job file has control characters: rename it";
    return read_flags(f, a, o);
}

static int compile(const struct args *f, struct arena *a, struct job *job, struct report *plan,
                   struct buf *why)
{
    struct job_errors errs = {0};
    struct findings *found = arena_new(a, struct findings);
    struct compiled *compiled = arena_new(a, struct compiled);
    struct device_model *device = arena_new(a, struct device_model);
    struct err e = {0};
    if (job_load(a, &weft_schema, f->pos[0], f->set, f->nset, job, &errs))
        job_errors_print(&errs, why);
    else if (job_check_devices(job, &e) || resolve_device(f, job, a, device, &e))
        buf_printf(why, "%s: %s\n", f->pos[0], e.text);
    else if (plan_explain(job, &(struct compile_options){.hasty = true}, a, compiled, found, NULL,
                          &e))
        report_errors(f->pos[0], found, &e, why);
    else {
        plan_fit(job, device, compiled, found, a);
        report_make(plan, job, compiled, found, device, a);
        if (found->errors)
            report_errors(f->pos[0], found, &e, why);
    }
    return why->len ? CLIENT_USAGE : CLIENT_OK;
}

// A rendered command that does not say what the job's sinks and receivers are can only fail.
static int check_names(const struct args *f, const struct job *job, enum render_kind kind,
                       struct err *e)
{
    const struct {
        const char *key, *flag, *value;
        const struct schema_list *names;
        const struct args_pairs *given;
    } lists[] = {{"metrics.sinks", "--sink", "COMMAND", &job->metrics.sinks, &f->sinks},
                 {"notify", "--notify", "@/PATH", &job->notify, &f->notify}};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k].names->n; i++) {
            const char *name = ((const char *const *)lists[k].names->items)[i];
            bool there = k == 0 && (strcmp(name, "tensorboard") == 0 || // is built in
                                    (kind == RENDER_TRAINJOB && strcmp(name, "kubeflow") == 0));
            if (!there && !args_pair(lists[k].given, name))
                return err_set(e, ERR_INVALID, "%s: nobody said what %s is: give %s %s=%s",
                               lists[k].key, name, lists[k].flag, name, lists[k].value);
        }
    return 0;
}

static int render(const struct args *f, struct arena *a, struct rendered *out, struct buf *why)
{
    static render_fn *const kinds[RENDER_KINDS] = {
        [RENDER_SLURM] = render_slurm,       [RENDER_JOB] = render_kubernetes,
        [RENDER_JOBSET] = render_kubernetes, [RENDER_TRAINJOB] = render_kubernetes,
        [RENDER_SYSTEMD] = render_systemd,
    };
    struct report plan;
    struct err e = {0};
    if (compile(f, a, &out->job, &plan, why))
        return CLIENT_USAGE;
    out->job.base_dir = out->options.folder;
    int rc = check_names(f, &out->job, out->options.kind, &e);
    rc = rc ? rc : render_facts_make(&out->options, &out->job, &plan, a, &out->facts, &e);
    rc = rc ? rc : kinds[out->options.kind](&out->facts, a, &out->text, &e);
    if (rc)
        buf_printf(why, "%s: %s\n", f->pos[0], e.text);
    return rc ? CLIENT_USAGE : CLIENT_OK;
}

int render_job(const struct verb *v, const struct args *f, enum render_kind kind,
               const char *program, struct arena *a, struct rendered *out)
{
    struct buf why = {0};
    *out = (struct rendered){0};
    const char *wrong = read_options(f, kind, a, &out->options);
    out->options.program = program;
    int rc = wrong ? usage(v, wrong) : render(f, a, out, &why);
    plain_puts(stderr, buf_str(&why));
    buf_clear(&why);
    return rc;
}
