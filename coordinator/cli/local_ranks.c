// SPDX-License-Identifier: Apache-2.0
// A checkpoint's model on ranks of this process's own. See local_ranks.h.
#include "coordinator/cli/local_ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/ckpt/source.h"
#include "common/explain/decode_plan.h"
#include "common/job/threads.h"
#include "common/language/model_facts.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "common/tokenizer/tokenizer.h"
#include "coordinator/cli/run_record.h"

#define FOLDER "weft-ranks-"
enum { TURN_MS = 50, RANKS_END_S = 5, JOIN_S = 60 };

// ---- the checkpoint and its job ----

static int open_checkpoint(struct local_ranks *l, const char *text, struct err *e)
{
    struct manifest_source from;
    char whole[PATH_MAX];
    int64_t step;
    const char *path = record_find_checkpoint(text, &l->arena, &step);
    int rc = source_open(&l->load, NULL, path, step, &l->arena, &from, e);
    if (rc)
        return rc;
    if (!realpath(from.folder, whole))
        return err_errno(e, ERR_IO, "%s", from.folder);
    l->store = arena_strdup(&l->arena, whole);
    return 0;
}

// "dp=2,tp=2" as YAML.
static const char *format_mesh(struct arena *a, const char *mesh)
{
    struct buf b = {0};
    if (!mesh)
        return "{dp: 1}";
    if (*mesh == '{')
        return mesh;
    buf_putc(&b, '{');
    for (; *mesh; mesh++)
        buf_puts(&b, *mesh == '=' ? ": " : *mesh == ',' ? ", " : (char[]){*mesh, 0});
    buf_putc(&b, '}');
    return buf_keep(&b, a);
}

// The product of a mesh's numbers: whichever of its axes cut the rows, it divides so many of them.
static int64_t count_devices(const char *mesh)
{
    int64_t n = 1;
    for (const char *s = mesh; (s = strchr(s, ':')); s++) {
        long long size = strtoll(s + 1, NULL, 10);
        if (size > 0 && size <= LOCAL_RANKS_MAX && n <= LOCAL_RANKS_MAX)
            n *= size;
    }
    return n;
}

// A parameter that is not there, or of another shape, as that of positions where model.seq is not the
// training's.
static int check_parameters(const struct local_ranks *l, const struct graph *g, struct err *e)
{
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        const struct manifest_tensor *t =
            v->kind == VALUE_PARAM ? manifest_find(&l->load.manifest, v->name) : NULL;
        if (v->kind != VALUE_PARAM || (t && shape_equal(&t->shape, &v->shape)))
            continue;
        if (!t)
            return err_set(e, ERR_DATA, "%s has no %s", l->load.name, v->name);
        struct buf text = {0};
        for (int d = 0; d < t->shape.n; d++)
            buf_printf(&text, "%s%lld", d ? ", " : "", (long long)t->shape.dim[d]);
        buf_puts(&text, "] in the checkpoint, where [");
        for (int d = 0; d < v->shape.n; d++)
            buf_printf(&text, "%s%lld", d ? ", " : "", (long long)v->shape.dim[d]);
        err_set(e, ERR_INVALID, "%s is [%s] is asked for: leave out what changes the model's sizes",
                v->name, buf_str(&text));
        buf_clear(&text);
        return e->code;
    }
    return 0;
}

// The samples of a microbatch that one device of the training had, if the batch was cut on all of them.
static int64_t find_share(struct local_ranks *l)
{
    struct job_errors errs = {0};
    struct job job = {0};
    const char *text = l->load.manifest.resolved;
    if (job_parse(&l->arena, &weft_schema, NULL, "/", text, strlen(text), NULL, 0, &job, &errs))
        return 1;
    int64_t share = job.data.batch / job.train.microbatches / job.resources.devices;
    return share ? share : 1;
}

int local_ranks_check_tokenizer(const struct local_ranks *l, const char *name, const char *identity,
                                struct err *e)
{
    const char *trained = l->load.manifest.tokenizer;
    if (!trained || !*trained || strcmp(trained, "ids") == 0 || strcmp(identity, "ids") == 0 ||
        strcmp(identity, trained) == 0)
        return 0;
    return err_set(e, ERR_DATA, "tokenizer %s is %s, and the training's was %s (%s)", name,
                   identity, trained, l->load.name);
}

int local_ranks_settings(struct arena *a, const struct local_options *o, int64_t rows,
                         const char **set, int *n, struct err *e)
{
    const char *mesh = format_mesh(a, o->mesh);
    const int64_t devices = count_devices(mesh);
    *n = 0;
    set[(*n)++] = arena_printf(a, "mesh=%s", mesh);
    set[(*n)++] = arena_printf(a, "resources.devices=%lld", (long long)devices);
    set[(*n)++] =
        arena_printf(a, "resources.threads=%d", (int)threads_share(cores_usable(), devices));
    set[(*n)++] = "resources.hosts=1";
    set[(*n)++] = "sharding={}";
    set[(*n)++] = "pipeline={}";
    set[(*n)++] = "train.microbatches=1";
    set[(*n)++] =
        arena_printf(a, "data.batch=%lld", (long long)((rows + devices - 1) / devices * devices));
    for (int i = 0; i < o->nset; i++) {
        bool mesh_too = strncmp(o->set[i], "mesh", 4) == 0;
        if (mesh_too || strncmp(o->set[i], "data.batch=", 11) == 0)
            return err_set(e, ERR_INVALID, "-s %s: use %s", o->set[i],
                           mesh_too ? "--mesh" : "--batch");
        set[(*n)++] = o->set[i];
    }
    return 0;
}

static int read_job(struct local_ranks *l, const struct local_options *o, struct err *e)
{
    const char *set[LOCAL_SETTINGS_MAX], *text = l->load.manifest.resolved;
    int64_t rows =
        o->rows ? o->rows : find_share(l) * count_devices(format_mesh(&l->arena, o->mesh));
    struct job_errors errs = {0};
    struct compiled compiled;
    struct buf resolved = {0};
    int n;
    if (local_ranks_settings(&l->arena, o, rows, set, &n, e))
        return e->code;
    if (job_parse(&l->arena, &weft_schema, NULL, "/", text, strlen(text), set, n, &l->job, &errs))
        return job_errors_err(&errs, e);
    const char *beside = arena_printf(&l->arena, "%s/" STORE_TOKENIZER, l->store);
    char identity[TOKENIZER_IDENTITY_LEN];
    struct err none = {0};
    int found = tokenizer_identify(NULL, beside, identity, &none);
    l->tokenizer_gone = found == ERR_NOTFOUND && l->job.data.format == JOB_DATA_TOKENS &&
                        tokenizer_is_file(l->job.data.tokenizer);
    if (!found && local_ranks_check_tokenizer(l, beside, identity, e))
        return e->code;
    l->job.eval.sample.prompt = NULL; // of the training's samples, which may be no ids
    // The job's own path was beneath another root.
    if (l->tokenizer_gone)
        l->job.data.tokenizer = "ids";
    else if (found != ERR_NOTFOUND)
        l->job.data.tokenizer = beside;
    if (o->only != PROGRAM_SCORE && !l->job.model.facts->samples)
        return err_set(
            e, ERR_INVALID,
            "%s: its program %s names no `logits` of tokens, so there is nothing to draw "
            "text from: a model that does can be asked",
            o->checkpoint, l->job.model.program);
    int rc = job_check_devices(&l->job, e);
    if (!rc && l->job.resources.devices > LOCAL_RANKS_MAX)
        rc = err_set(e, ERR_LIMIT, "at most %d devices", LOCAL_RANKS_MAX);
    if (!rc)
        rc = plan_compile(&l->job, &(struct compile_options){.only = o->only}, &l->arena, &compiled,
                          NULL, e);
    if (!rc)
        rc = check_parameters(l, compiled.global[o->only], e);
    job_print(&l->job, &resolved);
    l->resolved = buf_keep(&resolved, &l->arena);
    return rc;
}

int local_ranks_open(struct local_ranks *l, const struct local_options *o, struct err *e)
{
    *l = (struct local_ranks){.load = {.dirfd = -1}, .signals = -1};
    weft__rank__assign__init(&l->assign);
    l->assign.only = o->only;
    int rc = open_checkpoint(l, o->checkpoint, e);
    return rc ? rc : read_job(l, o, e);
}

int local_ranks_keep_keys(struct local_ranks *l, int64_t tokens, int64_t context, int *gathered,
                          struct err *e)
{
    const struct compile_options o = {.only = PROGRAM_FILL, .rows = tokens, .context = context};
    struct arena scratch = {0};
    struct compiled compiled;
    struct decode_plan plan = {0};
    int rc = plan_compile(&l->job, &o, &scratch, &compiled, NULL, e);
    if (!rc)
        decode_plan_make(&plan, &compiled, &(struct device_model){0}, &scratch);
    *gathered = plan.ngathered;
    arena_clear(&scratch);
    if (rc)
        return rc;
    l->assign.only = o.only;
    l->assign.rows = o.rows;
    l->assign.context = o.context;
    return 0;
}

// ---- the ranks ----

// Packed answers one behind the other are one answer that has what each of them lists.
static void keep_answer(void *ctx, const Weft__Rank__Answer *a)
{
    struct local_ranks *l = ctx;
    const size_t had = l->answers.len, n = weft__rank__answer__get_packed_size(a);
    buf_reserve(&l->answers, n);
    weft__rank__answer__pack(a, (uint8_t *)l->answers.data + had);
    l->answers.len += n;
    if (l->answer)
        weft__rank__answer__free_unpacked(l->answer, NULL);
    l->nanswers++;
    l->answer = weft__rank__answer__unpack(NULL, had + n, (const uint8_t *)l->answers.data);
}

// A folder is locked for its owner's life: one that is not is of a process that was killed.
static int lock_folder(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &st) && st.st_uid == geteuid() && !flock(fd, LOCK_EX | LOCK_NB))
        return fd;
    system_close(&fd);
    return -1;
}

static void remove_left(const char *tmp)
{
    char path[PATH_MAX];
    DIR *d = opendir(tmp);
    for (struct dirent *it; d && (it = readdir(d));) {
        bool ours = strncmp(it->d_name, FOLDER, strlen(FOLDER)) == 0 &&
                    strlen(it->d_name) == strlen(FOLDER) + 6;
        snprintf(path, sizeof path, "%s/%s", tmp, it->d_name);
        int fd = ours ? lock_folder(path) : -1;
        if (fd < 0)
            continue;
        folder_remove(path);
        close(fd);
    }
    if (d)
        closedir(d);
}

static int make_folder(struct local_ranks *l, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    struct stat st = {0};
    tmp = tmp && *tmp == '/' ? tmp : "/tmp";
    remove_left(tmp);
    for (int i = 0; i < 10 && !st.st_nlink;
         i++) { // another process may take it for one that was left
        snprintf(l->folder, sizeof l->folder, "%s/" FOLDER "XXXXXX", tmp);
        if (!mkdtemp(l->folder)) {
            err_errno(e, ERR_IO, "%s", l->folder);
            l->folder[0] = 0;
            return e->code;
        }
        l->lock = lock_folder(l->folder);
        if (l->lock >= 0 && fstat(l->lock, &st))
            st.st_nlink = 0;
    }
    return st.st_nlink ? 0 : err_set(e, ERR_IO, "cannot lock %s", l->folder);
}

static int fill_assign(struct local_ranks *l, struct err *e)
{
    static char id[ID_LEN], hash[65];
    static unsigned char key[32];
    Weft__Rank__Assign *a = &l->assign;
    job_hash(&l->job, hash);
    int rc = entropy_id(id, e);
    rc = rc ? rc : entropy_bytes(key, sizeof key, e);
    a->attempt = 1;
    a->job_text = frame_text(l->resolved);
    a->job_hash = hash;
    a->job_id = a->cluster_id = a->run_id = a->attempt_id = id;
    a->key.data = key;
    a->key.len = sizeof key;
    a->store = frame_text(l->store);
    a->restore = l->load.name;
    a->restore_step = l->load.manifest.step;
    a->hang_after_ns = l->job.restart.hang_after;
    a->base_dir = frame_text("/");
    return rc;
}

// In the folder; −1: it cannot be.
static int open_log(const struct local_ranks *l, const char *name, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", l->folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        err_errno(e, ERR_IO, "%s", path);
    return fd;
}

static int start_rank(struct local_ranks *l, int rank, struct err *e)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%04d.log", rank);
    int fd = open_log(l, name, e);
    if (fd < 0)
        return e->code;
    const struct local_start s = {l->rank, "here", job_device_kind(l->job.resources.kind), fd};
    int rc = local_leader_start(&l->lead, rank, &s, e);
    l->alive += !rc;
    close(fd);
    return rc;
}

static void reap(struct local_ranks *l)
{
    for (int r = 0; r < l->lead.n; r++) {
        int status;
        pid_t pid = l->lead.ranks[r].pid;
        if (pid <= 0 || waitpid(pid, &status, WNOHANG) != pid)
            continue;
        int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        l->alive--;
        local_leader_ended(&l->lead, r, signal ? 0 : WEXITSTATUS(status), signal);
        l->killed |= signal == SIGKILL;
        if (!l->why.code && l->lead.ranks[r].why[0])
            err_set(&l->why, ERR_PEER, "rank %d: %s", r, l->lead.ranks[r].why);
        else if (!l->why.code)
            err_set(&l->why, ERR_PEER, "rank %d ended with %d", r,
                    signal ? 128 + signal : WEXITSTATUS(status));
    }
}

// Hears the ranks for a moment.
static int turn(struct local_ranks *l, int timeout_ms, struct err *e)
{
    struct signalfd_siginfo info;
    local_leader_turn(&l->lead, timeout_ms);
    reap(l);
    if (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info)
        return err_set(e, ERR_ABORTED, "interrupted");
    // The leader waits a moment for the cause before it names who lost a peer.
    if (!l->lead.failed && (!l->why.code || l->alive))
        return 0;
    return err_set(e, ERR_PEER, "%s%s", l->lead.failed ? l->lead.culprit.text : l->why.text,
                   l->killed ? "; where nobody killed it this machine's memory was full: give a "
                               "smaller --batch"
                             : "");
}

int local_ranks_start(struct local_ranks *l, struct err *e)
{
    const int which[] = {SIGINT, SIGTERM, SIGHUP, 0};
    // No hang_after: an answer may take long, and a person waits for it, who has Ctrl-C.
    struct leader_config c = {.ranks = (int)l->job.resources.devices, .join_ns = JOIN_S * CLOCK_S};
    int rc = system_find_program("weft-rank", l->rank, sizeof l->rank, e);
    rc = rc ? rc : system_read_signals(which, &l->signals, e);
    rc = rc ? rc : fill_assign(l, e);
    rc = rc ? rc : make_folder(l, e);
    if (rc)
        return rc;
    l->log = open_log(l, "lead.log", e);
    if (l->log < 0)
        return e->code;
    log_to(l->log); // what the leader logs; how it ends is said by the verb
    local_leader_init(&l->lead, &c, &l->assign, l->folder);
    l->led = true;
    l->lead.answered = keep_answer;
    l->lead.ctx = l;
    for (int r = 0; r < c.ranks && !rc; r++) {
        l->lead.ranks[r].assign.device = r;
        rc = start_rank(l, r, e);
    }
    while (!rc && !l->lead.ready)
        rc = turn(l, TURN_MS, e);
    return rc;
}

int local_ranks_ask(struct local_ranks *l, const Weft__Rank__Ask *ask,
                    const Weft__Rank__Answer **answer, struct err *e)
{
    int rc = 0;
    FRAME(f, ASK, ask, frame_borrow(ask));
    if (l->answer)
        weft__rank__answer__free_unpacked(l->answer, NULL);
    l->answer = NULL;
    buf_reset(&l->answers);
    l->nanswers = 0;
    local_leader_send(&l->lead, -1, &f);
    while (!rc && (!l->answer || l->nanswers < l->answer->parts))
        rc = turn(l, TURN_MS, e);
    *answer = l->answer;
    return rc;
}

int local_ranks_wait(struct local_ranks *l, int fd, short events, struct err *e)
{
    for (;;) {
        struct pollfd p[] = {{.fd = fd, .events = events}, {.fd = l->signals, .events = POLLIN}};
        int n = poll(p, 2, LEADER_TICK_MS / 2);
        int rc = turn(l, 0, e);
        if (rc || (n > 0 && p[0].revents))
            return rc;
    }
}

void local_ranks_close(struct local_ranks *l)
{
    struct err ignored = {0};
    int64_t until_ns = clock_mono_ns() + RANKS_END_S * CLOCK_S;
    if (l->led) {
        local_leader_stop(&l->lead, "nothing more is asked");
        while (l->alive && clock_mono_ns() < until_ns && l->lead.ready && !l->lead.failed)
            (void)turn(l, TURN_MS, &ignored);
        for (int r = 0; r < l->lead.n; r++)
            if (l->lead.ranks[r].pid > 0) {
                (void)kill(l->lead.ranks[r].pid, SIGKILL);
                (void)waitpid(l->lead.ranks[r].pid, NULL, 0);
            }
        local_leader_clear(&l->lead);
    }
    if (l->log > 0) {
        log_to(STDERR_FILENO);
        close(l->log);
    }
    if (l->folder[0])
        folder_remove(l->folder);
    if (l->lock > 0)
        close(l->lock);
    if (l->answer)
        weft__rank__answer__free_unpacked(l->answer, NULL);
    buf_clear(&l->answers);
    if (l->signals > 0)
        close(l->signals);
    load_close(&l->load);
    arena_clear(&l->arena);
    *l = (struct local_ranks){0};
}
