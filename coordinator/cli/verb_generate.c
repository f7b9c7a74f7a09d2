// SPDX-License-Identifier: Apache-2.0
// weft generate: a checkpoint's model continues texts, on ranks of this process (local_ranks.h).
//
//   prompts   --prompt, a file or standard input; of a terminal, lines that one text grows by
//   shown     texts in their order, each as it comes
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "common/job/prompt.h"
#include "common/language/model_facts.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/generation.h"

enum {
    TOKENS = 100,
    TOKENS_MAX = 1 << 24, // of --tokens
    TEXTS_MAX = 1 << 20,
    PROMPTS_BYTES = 256 << 20,
    PIECE = 1024 // bytes that a pipe takes at once if it takes any, however they are escaped
};

static const int interrupts[] = {SIGINT, SIGTERM, SIGHUP};

struct prompt {
    const char *text;
    size_t len;
    struct token_ids ids;
};
struct generate {
    const struct args *args;
    struct arena arena;
    struct local_ranks ranks;
    struct tokenizer *tokenizer;
    struct tokenizer_work *work;
    struct generation g;
    struct prompt *prompts;
    int nprompts, prompts_cap;
    bool talks; // a conversation: lines come from the terminal
    struct generated *texts;
    int64_t ntexts, head; // head: the text that is shown now
    bool not_finite;      // a text ended so
};

// ---- prompts ----

static void add_prompt(struct generate *v, const char *text, size_t len)
{
    v->prompts =
        arena_grow(&v->arena, v->prompts, sizeof *v->prompts, v->nprompts, &v->prompts_cap);
    v->prompts[v->nprompts++] = (struct prompt){.text = text, .len = len};
}

static int add_line(struct generate *v, const char *line, size_t len, struct err *e)
{
    struct json *j;
    if (line[0] != '"') {
        add_prompt(v, line, len);
        return 0;
    }
    int rc = json_parse(&v->arena, line, len, &j, e);
    if (rc)
        return rc;
    add_prompt(v, j->string, strlen(j->string));
    return 0;
}

static int read_all(struct generate *v, const char *path, const char **text, size_t *len,
                    struct err *e)
{
    struct buf b = {0};
    bool input = strcmp(path, "-") == 0;
    int rc = input ? folder_read_fd(STDIN_FILENO, "standard input", PROMPTS_BYTES, &b, e)
                   : folder_read_whole(AT_FDCWD, path, false, PROMPTS_BYTES, &b, e);
    *len = b.len;
    *text = buf_keep(&b, &v->arena);
    return rc;
}

// A prompt a line.
static int read_prompts(struct generate *v, const char *path, struct err *e)
{
    const char *text, *end;
    size_t len;
    int line = 1, rc = read_all(v, path, &text, &len, e);
    for (const char *s = text; !rc && s < text + len; s = end + 1, line++) {
        end = memchr(s, '\n', (size_t)(text + len - s));
        end = end ? end : text + len;
        size_t n = (size_t)(end - s);
        if (n && s[n - 1] == '\r')
            n--;
        if (n)
            rc = add_line(v, s, n, e);
        if (rc)
            return err_wrap(e, "%s:%d", path, line);
    }
    return rc || v->nprompts ? rc : err_set(e, ERR_INVALID, "%s holds no prompt", path);
}

static int find_prompts(struct generate *v, struct err *e)
{
    const struct args *a = v->args;
    const char *text;
    size_t len;
    if (a->prompt && a->prompts)
        return err_set(e, ERR_INVALID, "--prompt and --prompts: one of them will do");
    if (a->prompts)
        return read_prompts(v, a->prompts, e);
    if (a->prompt && strcmp(a->prompt, "-") != 0) {
        add_prompt(v, a->prompt, strlen(a->prompt));
        return 0;
    }
    v->talks = !a->prompt && isatty(STDIN_FILENO);
    if (v->talks)
        return 0;
    int rc = read_all(v, "-", &text, &len, e);
    if (!rc)
        add_prompt(v, text, len);
    return rc;
}

// ---- what may be asked of this model ----

static int open_tokenizer(struct generate *v, struct err *e)
{
    const char *name = v->args->tokenizer;
    if (!name && v->ranks.tokenizer_gone)
        return err_set(e, ERR_NOTFOUND,
                       "%s has no tokenizer: give it with --tokenizer, or --tokenizer ids",
                       v->ranks.store);
    name = name ? name : job_tokenizer(&v->ranks.job, &v->arena);
    if (tokenizer_open(&v->tokenizer, name, e))
        return err_wrap(e, "tokenizer %s", name);
    if (local_ranks_check_tokenizer(&v->ranks, name, tokenizer_identity(v->tokenizer), e))
        return e->code;
    v->work = tokenizer_work_new(v->tokenizer);
    return 0;
}

static int encode(struct generate *v, const char *text, size_t len, bool begins,
                  struct token_ids *ids, struct err *e)
{
    const int64_t vocab = v->ranks.job.model.facts->vocab;
    int rc = tokenizer_encode(v->tokenizer, v->work, text, len, begins, ids, e);
    if (!rc && !ids->n)
        rc = err_set(e, ERR_INVALID, "it holds no token: one is needed to begin with");
    if (!rc && ids->n > GENERATION_PROMPT)
        rc = err_set(e, ERR_LIMIT, "it has %zu tokens: at most %d can be asked", ids->n,
                     GENERATION_PROMPT);
    for (size_t i = 0; i < ids->n && !rc; i++)
        if (ids->data[i] >= vocab)
            rc = err_set(e, ERR_INVALID,
                         "token %d is not in 0 … %lld (model.vocab: %lld): is this the tokenizer "
                         "that it was trained with?",
                         ids->data[i], (long long)vocab - 1, (long long)vocab);
    return rc;
}

static int check_length(const struct generate *v, const struct prompt *p, int place, struct err *e)
{
    const int64_t context = v->g.how.context, n = (int64_t)p->ids.n, tokens = v->args->tokens;
    if (v->args->slide || (n < context && tokens <= context - n))
        return 0;
    if (n >= context)
        return err_set(e, ERR_INVALID,
                       "prompt %d has %lld tokens, and the context holds %lld with what is added: "
                       "shorten it, or --slide",
                       place, (long long)n, (long long)context);
    return err_set(e, ERR_INVALID,
                   "prompt %d has %lld tokens: with %lld more the context of %lld is full: try "
                   "--tokens %lld, or --slide",
                   place, (long long)n, (long long)tokens, (long long)context,
                   (long long)(context - n));
}

// How many tokens are added at most to one of n, whatever is beside it. Without --slide no more than
// the context holds.
static int64_t count_added(const struct generate *v, int64_t n)
{
    const int64_t left = v->g.how.context - n;
    int64_t tokens = v->args->tokens ? v->args->tokens : TOKENS;
    return v->args->slide || tokens < left ? tokens : left;
}

static int encode_prompts(struct generate *v, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < v->nprompts && !rc; i++) {
        struct prompt *p = &v->prompts[i];
        rc = encode(v, p->text, p->len, true, &p->ids, e);
        if (rc)
            return err_wrap(e, "prompt %d", i + 1);
        rc = check_length(v, p, i + 1, e);
    }
    return rc;
}

static int read_stop_ids(struct generate *v, struct err *e)
{
    const char *s = v->args->stop_ids;
    const int64_t vocab = v->ranks.job.model.facts->vocab;
    int32_t *ids = arena_array(&v->arena, int32_t, s ? strlen(s) + 1 : 1);
    v->g.stop_ids = ids;
    for (const char *more = s; more; more = *s ? s + 1 : NULL) {
        char *end;
        s = more;
        long long id = strtoll(s, &end, 10);
        if (end == s || (*end && *end != ',') || id < 0 || id >= vocab)
            return err_set(e, ERR_INVALID,
                           "--stop-ids takes ids from 0 to %lld, as 0,2, not '%.40s'",
                           (long long)vocab - 1, v->args->stop_ids);
        ids[v->g.nstop_ids++] = (int32_t)id;
        s = end;
    }
    return 0;
}

static int check_settings(const struct args *a, struct err *e)
{
    const bool drawn = a->top_k || a->top_p > 0 || a->min_p > 0 || a->seed || a->samples > 1;
    if (a->tokens > TOKENS_MAX)
        return err_set(e, ERR_LIMIT, "--tokens %lld: at most %d", (long long)a->tokens, TOKENS_MAX);
    if (a->chunk && a->no_cache)
        return err_set(e, ERR_INVALID,
                       "--chunk says how texts are read into kept keys, and --no-cache keeps none: "
                       "leave one out");
    if (a->top_p > 1 || a->min_p > 1)
        return err_set(e, ERR_INVALID, "%s is a share, 0 to 1",
                       a->top_p > 1 ? "--top-p" : "--min-p");
    if (drawn && a->temperature <= 0)
        return err_set(e, ERR_INVALID,
                       "--top-k, --top-p, --min-p, --seed and --samples act only with a "
                       "--temperature above 0: without one the most likely token is taken");
    return 0;
}

// A longer context than the model was trained with is another model.seq: that is possible where no
// parameter is of that size (local_ranks_open finds it).
static int open_model(struct generate *v, struct err *e)
{
    const struct args *a = v->args;
    const char *set[ARGS_MAX_SET + 1];
    struct local_options o = {.checkpoint = a->pos[0],
                              .mesh = a->mesh,
                              .rows = a->batch ? a->batch : GENERATE_ROWS,
                              .set = set,
                              .only = PROGRAM_SAMPLE};
    int64_t texts = (int64_t)v->nprompts * (a->samples ? a->samples : 1);
    if (!a->batch && texts < o.rows)
        o.rows = texts ? texts : 1;
    memcpy(set, a->set, sizeof *set * (size_t)a->nset);
    o.nset = a->nset;
    int rc = local_ranks_open(&v->ranks, &o, e);
    if (rc)
        return rc;
    int64_t seq = v->ranks.job.model.facts->seq;
    if (a->context > seq) {
        local_ranks_close(&v->ranks);
        set[o.nset++] = arena_printf(&v->arena, "model.seq=%d", a->context);
        rc = local_ranks_open(&v->ranks, &o, e);
        if (rc)
            err_wrap(e, "--context %d", a->context);
        seq = a->context;
    }
    v->g.rows = o.rows;
    v->g.how.context = a->context ? a->context : seq;
    return rc ? rc : open_tokenizer(v, e);
}

// Lets the ranks keep keys, of no more tokens than the texts can have. How many tokens a call takes
// does not hang on the texts, so that with one --batch no text's numbers hang on what is beside it.
// Where keys cannot be kept, it is said why: each token then costs a forward pass over the whole
// context.
static int keep_keys(struct generate *v, struct err *e)
{
    struct err why = {0};
    const int64_t chunk = v->args->chunk ? v->args->chunk : GENERATE_CHUNK;
    int64_t context = v->talks ? v->g.how.context : chunk;
    if (v->args->no_cache)
        return 0;
    for (int i = 0; i < v->nprompts; i++) {
        const int64_t n = (int64_t)v->prompts[i].ids.n, all = n + count_added(v, n);
        context = all > context ? all : context;
    }
    context = context < v->g.how.context ? context : v->g.how.context;
    int gathered = 0, rc = local_ranks_keep_keys(&v->ranks, chunk, context, &gathered, &why);
    if (rc == ERR_UNSUPPORTED)
        plain_error("weft generate: no keys are kept, so each token takes a whole forward pass: %s",
                    why.text);
    else if (rc)
        *e = why;
    if (gathered)
        plain_error("weft generate: --mesh %s: %d weights are gathered from other devices for each "
                    "token: tp, pp and dp gather none",
                    v->args->mesh, gathered);
    return rc == ERR_UNSUPPORTED ? 0 : rc;
}

static void fill_settings(struct generate *v)
{
    const struct args *a = v->args;
    v->g.ranks = &v->ranks;
    v->g.ask = local_ranks_ask;
    v->g.tokenizer = v->tokenizer;
    v->g.how.temperature = a->temperature;
    v->g.how.top_k = a->top_k;
    v->g.how.top_p = a->top_p;
    v->g.how.min_p = a->min_p;
    v->g.how.penalty = a->penalty;
    v->g.how.seed = (uint64_t)a->seed;
    v->g.how.log_shares = a->json;
    v->g.stops = a->stop;
    v->g.nstops = a->nstop;
}

// ---- what is shown ----

static volatile sig_atomic_t interrupted; // in a write
static int nowhere;                       // /dev/null

static void drop_output(int sig)
{
    (void)sig;
    interrupted = 1;
    (void)dup2(nowhere, STDOUT_FILENO);
}

static int catch_interrupts(struct err *e)
{
    struct sigaction act = {.sa_handler = drop_output}, before; // a write that waits ends by it
    nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0)
        return err_errno(e, ERR_IO, "/dev/null");
    for (size_t i = 0; i < sizeof interrupts / sizeof *interrupts; i++)
        if (!sigaction(interrupts[i], NULL, &before) && before.sa_handler != SIG_IGN)
            sigaction(interrupts[i], &act, NULL);
    return 0;
}

// A terminal that is ready may take less than a piece, and nothing more for long. So during the write
// interrupts are not kept for local_ranks: what is not written then goes nowhere, with no time between
// a look and the write in which one could be missed.
static int put_piece(const char *s, size_t n, struct err *e)
{
    sigset_t some, before;
    sigemptyset(&some);
    for (size_t i = 0; i < sizeof interrupts / sizeof *interrupts; i++)
        sigaddset(&some, interrupts[i]);
    pthread_sigmask(SIG_UNBLOCK, &some, &before);
    plain_put(stdout, s, n);
    fflush(stdout);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (interrupted)
        return err_set(e, ERR_ABORTED, "interrupted");
    return ferror(stdout) ? ERR_IO : 0;
}

// Writes to standard output, which may take nothing for long; ERR_IO with no text: it takes no more,
// which is said at the end of every verb (main.c).
static int show(struct generate *v, const char *s, size_t len, struct err *e)
{
    while (len) {
        size_t n = len < PIECE ? len : PIECE;
        while (n < len && n > PIECE / 2 && ((unsigned char)s[n] & 0xc0) == 0x80)
            n--; // not within a character of UTF-8
        int rc = local_ranks_wait(&v->ranks, STDOUT_FILENO, POLLOUT, e);
        if (!rc)
            rc = put_piece(s, n, e);
        if (rc)
            return rc;
        s += n;
        len -= n;
    }
    return 0;
}

static int show_json(struct generate *v, const struct generated *t, struct err *e)
{
    struct buf out = {0};
    struct json_out w;
    int64_t samples = v->args->samples ? v->args->samples : 1;
    json_print_start(&w, &out, false);
    json_int(&w, "prompt", t->request / samples);
    json_int(&w, "sample", t->request % samples);
    json_array(&w, "prompt_ids");
    for (int64_t i = 0; i < t->nprompt; i++)
        json_int(&w, NULL, t->prompt[i]);
    json_end(&w);
    json_int(&w, "prompt_kept", t->kept);
    json_array(&w, "ids");
    for (int64_t i = 0; i < t->n; i++)
        json_int(&w, NULL, t->ids[i]);
    json_end(&w);
    json_strn(&w, "text", buf_str(&t->text.text), t->text.text.len);
    json_str(&w, "ended", t->ended);
    json_array(&w, "log_probabilities");
    for (int64_t i = 0; i < t->n; i++)
        json_double(&w, NULL, t->log_shares[i]);
    json_end(&w);
    json_print_end(&w);
    int rc = show(v, buf_str(&out), out.len, e);
    buf_clear(&out);
    return rc;
}

static int begin_text(struct generate *v, struct generated *t, struct err *e)
{
    const struct prompt *p = &v->prompts[(t - v->texts) * v->nprompts / v->ntexts];
    t->begun = true;
    if (t > v->texts)
        plain_puts(stdout, "\n");
    int rc = show(v, p->text, p->len, e);
    if (strcmp(tokenizer_identity(v->tokenizer), "ids") == 0)
        plain_puts(stdout, " ");
    return rc;
}

// What of a text can be shown now.
static int show_text(struct generate *v, struct generated *t, struct err *e)
{
    size_t n;
    int rc = 0;
    if (v->args->json)
        return t->ended ? show_json(v, t, e) : 0;
    if (!t->begun && (t->n || t->ended))
        rc = begin_text(v, t, e);
    const char *s = held_take(&t->text, t->ended != NULL, &n);
    if (!rc)
        rc = show(v, s, n, e);
    return !rc && t->ended ? show(v, "\n", 1, e) : rc;
}

// Texts are shown in their order: what is of a later one waits for those before it.
static int on_grown(void *ctx, struct generated *grown, struct err *e)
{
    struct generate *v = ctx;
    (void)grown;
    for (; v->head < v->ntexts; v->head++) {
        struct generated *t = &v->texts[v->head];
        int rc = show_text(v, t, e);
        if (rc || !t->ended)
            return rc;
        if (strcmp(t->ended, "not finite") != 0)
            continue;
        v->not_finite = true;
        plain_error("weft generate: the logits are not finite: text %lld ends here",
                    (long long)v->head + 1);
    }
    return 0;
}

static int continue_prompts(struct generate *v, struct err *e)
{
    int64_t samples = v->args->samples ? v->args->samples : 1;
    v->ntexts = samples * v->nprompts;
    if (v->ntexts > TEXTS_MAX)
        return err_set(e, ERR_LIMIT, "%lld texts are over %d", (long long)v->ntexts, TEXTS_MAX);
    v->texts = arena_array(&v->arena, struct generated, v->ntexts);
    for (int64_t i = 0; i < v->ntexts; i++) {
        const struct prompt *p = &v->prompts[i / samples];
        v->texts[i].prompt = p->ids.data;
        v->texts[i].nprompt = (int64_t)p->ids.n;
        v->texts[i].tokens = count_added(v, (int64_t)p->ids.n);
        v->texts[i].request = (uint32_t)i;
    }
    int rc = generation_run(&v->g, v->texts, v->ntexts, &v->arena, e);
    generation_clear(v->texts, v->ntexts);
    return rc;
}

// ---- a conversation ----

// A line of standard input, without its end, which may be missing. *more: it is no empty one.
static int read_line(struct generate *v, struct buf *line, bool *more, struct err *e)
{
    buf_reset(line);
    *more = false;
    for (;;) {
        char c;
        int rc = local_ranks_wait(&v->ranks, STDIN_FILENO, POLLIN, e);
        if (rc)
            return rc;
        if (read(STDIN_FILENO, &c, 1) != 1 || c == '\n')
            break;
        buf_putc(line, c);
    }
    *more = line->len > 0;
    return 0;
}

static int check_room(const struct generate *v, const struct token_ids *ids, struct err *e)
{
    if (v->args->slide || (int64_t)ids->n < v->g.how.context)
        return 0;
    return err_set(
        e, ERR_LIMIT,
        "the text has %zu tokens with this line, and the context holds %lld with what is "
        "added: a shorter line, or --slide",
        ids->n, (long long)v->g.how.context);
}

// Each line that is entered continues the text, and so does the model. The line's end is part of it. Tokens
// that were there stay as they are, so that the ranks read the new ones alone.
static int talk(struct generate *v, struct err *e)
{
    struct buf line = {0};
    struct token_ids ids = {0};
    int64_t kept = 0;
    bool more = true;
    int rc = 0;
    while (!rc) {
        struct arena turn = {0};
        size_t before = ids.n;
        if (!v->args->json)
            plain_puts(stdout, "> ");
        fflush(stdout);
        rc = read_line(v, &line, &more, e);
        if (rc || !more)
            break;
        buf_putc(&line, '\n');
        if (encode(v, buf_str(&line), line.len, !before, &ids, e) || check_room(v, &ids, e)) {
            plain_error("weft generate: %s", e->text);
            ids.n = before;
            continue;
        }
        struct generated t = {.prompt = ids.data,
                              .nprompt = (int64_t)ids.n,
                              .tokens = count_added(v, (int64_t)ids.n),
                              .kept = kept,
                              .begun = true};
        v->texts = &t;
        v->ntexts = 1;
        v->head = 0;
        rc = generation_run(&v->g, &t, 1, &turn, e);
        for (int64_t i = 0; i < t.n; i++)
            token_ids_put(&ids, t.ids[i]);
        kept = t.sent;
        generation_clear(&t, 1);
        arena_clear(&turn);
    }
    buf_clear(&line);
    token_ids_clear(&ids);
    if (!more && !v->args->json)
        plain_puts(stdout, "\n");
    return rc;
}

// ---- the verb ----

static int run(struct generate *v, struct err *e)
{
    int rc = check_settings(v->args, e);
    rc = rc ? rc : find_prompts(v, e);
    rc = rc ? rc : open_model(v, e);
    rc = rc ? rc : read_stop_ids(v, e);
    rc = rc ? rc : encode_prompts(v, e);
    rc = rc ? rc : keep_keys(v, e);
    if (rc)
        return CLIENT_USAGE;
    fill_settings(v);
    v->g.grown = on_grown;
    v->g.ctx = v;
    rc = local_ranks_start(&v->ranks, e);
    rc = rc ? rc : catch_interrupts(e);
    if (!rc)
        rc = v->talks ? talk(v, e) : continue_prompts(v, e);
    return rc == ERR_ABORTED ? CLIENT_INTERRUPTED : rc || v->not_finite ? CLIENT_FAILED : CLIENT_OK;
}

int verb_generate(const struct verb *verb, const struct args *a)
{
    struct generate v = {.args = a};
    struct err e = {0};
    weft__rank__ask__init(&v.g.how);
    int rc = run(&v, &e);
    if (rc == CLIENT_INTERRUPTED)
        plain_end_line();
    else if (rc && *e.text)
        plain_error("weft %s: %s", verb->name, e.text);
    local_ranks_close(&v.ranks);
    for (int i = 0; i < v.nprompts; i++)
        token_ids_clear(&v.prompts[i].ids);
    tokenizer_work_free(v.work);
    tokenizer_close(v.tokenizer);
    arena_clear(&v.arena);
    return rc;
}
