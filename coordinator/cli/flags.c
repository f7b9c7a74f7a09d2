// SPDX-License-Identifier: Apache-2.0
// The client's flags; see flags.h.
#include "coordinator/cli/flags.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/duration.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "coordinator/cli/verbs.h"

enum flag_type {
    IS_SWITCH,
    IS_TEXT,
    IS_NUMBER,
    IS_STEP,
    IS_COUNT,
    IS_BYTES,
    IS_DURATION,
    IS_REAL,
    IS_LIST,
    IS_STOPS,
    IS_PAIRS
};

static const struct flag_row {
    const char *name, *brief, *value, *doc;
    enum flag_type type;
    size_t offset; // in struct args
} rows[FLAGS] = {
    [FLAG_COORDINATOR] = {"--coordinator", NULL, "ADDRESS",
                          "unix:/path, HOST:PORT, or .weft/NAME of a `weft run`; else "
                          "WEFT_COORDINATOR, MASTER_ADDR and MASTER_PORT, or the default socket",
                          IS_TEXT, offsetof(struct args, coordinator)},
    [FLAG_TLS] = {"--tls", NULL, "DIR",
                  "folder of ca.pem and client.pem, client.key (or admin.*); else WEFT_TLS",
                  IS_TEXT, offsetof(struct args, tls)},
    [FLAG_JSON] = {"--json", NULL, NULL,
                   "for programs; coordinator/cli/README.md says what it holds", IS_SWITCH,
                   offsetof(struct args, json)},
    [FLAG_SET] = {"--set", "-s", "KEY=VALUE",
                  "override a key of the job file, or for export a token id; repeatable", IS_LIST,
                  offsetof(struct args, set)},
    [FLAG_DEVICE] = {"--device", NULL, "MODEL",
                     "device to plan for: h200, h100, a100-80g, a100-40g, cpu, or "
                     "NAME:memory=80GB; default: cpu, of a job for CUDA h200",
                     IS_TEXT, offsetof(struct args, device)},
    [FLAG_MARKDOWN] = {"--markdown", NULL, NULL, "as the table of common/job/KEYS.md", IS_SWITCH,
                       offsetof(struct args, markdown)},
    [FLAG_REQUEST] = {"--request", NULL, "ID",
                      "32 hex digits: the same request again gives the same job", IS_TEXT,
                      offsetof(struct args, request)},
    [FLAG_ALL] = {"--all", "-a", NULL, "ended jobs too", IS_SWITCH, offsetof(struct args, all)},
    [FLAG_FOLLOW] = {"--follow", "-f", NULL,
                     "continue until the job ends; a held one may be resumed", IS_SWITCH,
                     offsetof(struct args, follow)},
    [FLAG_RANK] = {"--rank", NULL, "R", "of one rank only", IS_NUMBER, offsetof(struct args, rank)},
    [FLAG_ATTEMPT] = {"--attempt", NULL, "N", "of this attempt only", IS_NUMBER,
                      offsetof(struct args, attempt)},
    [FLAG_LINES] = {"--lines", "-n", "N", "the last N lines of a rank, rows of metrics", IS_NUMBER,
                    offsetof(struct args, lines)},
    [FLAG_WHY] = {"--why", NULL, "TEXT", "the reason, for the job's history", IS_TEXT,
                  offsetof(struct args, why)},
    [FLAG_DIR] = {"--dir", NULL, "DIR", "folder to try as a place of checkpoints", IS_TEXT,
                  offsetof(struct args, dir)},
    [FLAG_SINK] = {"--sink", NULL, "NAME=COMMAND",
                   "a program that gets metrics, if metrics.sinks names it; repeatable", IS_PAIRS,
                   offsetof(struct args, sinks)},
    [FLAG_NOTIFY] = {"--notify", NULL, "NAME=URL",
                     "a URL that gets notices, if notify: names it; NAME=@FILE reads it from a "
                     "file of mode 0600; repeatable",
                     IS_PAIRS, offsetof(struct args, notify)},
    [FLAG_FULL] = {"--full", NULL, NULL, "all of it, also what is folded or left out else",
                   IS_SWITCH, offsetof(struct args, full)},
    [FLAG_STATE] = {"--state", NULL, "STATE", "those in this state, as running; several: a,b",
                    IS_TEXT, offsetof(struct args, state)},
    [FLAG_SINCE] = {"--since", NULL, "WHEN",
                    "those submitted since: 30m, 2h, 7d ago, or a date as 2026-11-28", IS_TEXT,
                    offsetof(struct args, since)},
    [FLAG_SORT] = {"--sort", NULL, "COLUMN",
                   "by name, state, step, loss, ranks, prio, age or owner; -COLUMN: the other way",
                   IS_TEXT, offsetof(struct args, sort)},
    [FLAG_TAG] = {"--tag", NULL, "TAG", "those whose tags: have it; several, as a,b: all of them",
                  IS_TEXT, offsetof(struct args, tag)},
    [FLAG_KEYS] = {"--keys", NULL, "KEY,…", "what to draw; default: loss,eval_loss", IS_TEXT,
                   offsetof(struct args, keys)},
    [FLAG_SMOOTH] = {"--smooth", NULL, "WEIGHT",
                     "draw the mean of the numbers so far, in which one before weighs so much: 0.9",
                     IS_REAL, offsetof(struct args, smooth)},
    [FLAG_LOG] = {"--log", NULL, NULL, "a logarithmic scale", IS_SWITCH,
                  offsetof(struct args, log)},
    [FLAG_SVG] = {"--svg", NULL, "FILE", "write the picture to FILE instead", IS_TEXT,
                  offsetof(struct args, svg)},
    [FLAG_METRICS] = {"--metrics", NULL, NULL, "what each measured last, and at its best",
                      IS_SWITCH, offsetof(struct args, metrics)},
    [FLAG_FOR] = {"--for", NULL, "KIND", "slurm, job, jobset, trainjob or systemd", IS_TEXT,
                  offsetof(struct args, render)},
    [FLAG_PER_NODE] = {"--per-node", NULL, "N",
                       "devices that a node has; default: 8, with systemd all", IS_NUMBER,
                       offsetof(struct args, per_node)},
    [FLAG_WRITE_RATE] = {"--write-rate", NULL, "RATE",
                         "bytes a second that the storage of checkpoints takes, as 2GB; default: "
                         "100MB",
                         IS_BYTES, offsetof(struct args, write_rate)},
    [FLAG_IMAGE] = {"--image", NULL, "IMAGE", "of pods; default: weft:VERSION", IS_TEXT,
                    offsetof(struct args, image)},
    [FLAG_CLAIM] = {"--claim", NULL, "NAME[:PATH]",
                    "PersistentVolumeClaim of data and checkpoints, and where pods have it; "
                    "default: weft:/weft",
                    IS_TEXT, offsetof(struct args, claim)},
    [FLAG_QUEUE] = {"--queue", NULL, "NAME",
                    "Slurm's partition, or Kueue's local queue: the job then begins suspended",
                    IS_TEXT, offsetof(struct args, queue)},
    [FLAG_SECRET] = {"--secret", NULL, "NAME",
                     "Secret whose key `secret`, of at least 16 characters, seals what the leader "
                     "writes for its agents; default: that file is this user's alone",
                     IS_TEXT, offsetof(struct args, secret)},
    [FLAG_USER] = {"--user", NULL, "USER",
                   "as whom it runs: a number for pods (10001), a name for systemd (weft)", IS_TEXT,
                   offsetof(struct args, user)},
    [FLAG_GRACE] = {"--grace", NULL, "D",
                    "for ranks to save when it is asked to stop, as 5m; default: 90s", IS_DURATION,
                    offsetof(struct args, grace_ns)},
    [FLAG_HOSTS] = {"--hosts", NULL, "HOST,…", "where to run, as a,user@b,[::1]; the first leads",
                    IS_TEXT, offsetof(struct args, hosts)},
    [FLAG_SSH] =
        {"--ssh", NULL, "COMMAND",
         "what to call for ssh, as 'ssh -p 2222 -i KEY'; it gets options of ssh, the host and "
         "a command",
         IS_TEXT, offsetof(struct args, ssh)},
    [FLAG_WEFT] = {"--weft", NULL, "PATH", "where hosts have weft; default: where it is here",
                   IS_TEXT, offsetof(struct args, weft)},
    [FLAG_CSV] = {"--csv", NULL, NULL, "as comma-separated values, a row a step", IS_SWITCH,
                  offsetof(struct args, csv)},
    [FLAG_YES] = {"--yes", "-y", NULL, "do not ask", IS_SWITCH, offsetof(struct args, yes)},
    [FLAG_NEW] = {"--new", NULL, NULL, "start over: the old state is moved aside", IS_SWITCH,
                  offsetof(struct args, fresh)},
    [FLAG_TOKENIZER] = {"--tokenizer", NULL, "NAME",
                        "bytes (every byte is a token), a tokenizer.json, or a folder with one or "
                        "with vocab.json and merges.txt",
                        IS_TEXT, offsetof(struct args, tokenizer)},
    [FLAG_OUT] = {"--out", NULL, "PATH", "where to write: a new folder, train-tokenizer a file",
                  IS_TEXT, offsetof(struct args, out)},
    [FLAG_FORMAT] = {"--format", NULL, "text|jsonl",
                     "of the inputs; default: jsonl where a name ends in .jsonl, .ndjson or .json "
                     "(and .gz, .zst), else text",
                     IS_TEXT, offsetof(struct args, format)},
    [FLAG_FIELD] = {"--field", NULL, "NAME",
                    "the field of JSONL that holds the text; default: text", IS_TEXT,
                    offsetof(struct args, field)},
    [FLAG_END] = {"--end", NULL, "TOKEN",
                  "the token behind each document; default: the tokenizer's own", IS_TEXT,
                  offsetof(struct args, end)},
    [FLAG_VAL_FRACTION] = {"--val-fraction", NULL, "F",
                           "share of the documents that are set apart for validation; default: 0",
                           IS_TEXT, offsetof(struct args, val_fraction)},
    [FLAG_SHARD_TOKENS] = {"--shard-tokens", NULL, "N", "tokens of a file; default: 100000000",
                           IS_COUNT, offsetof(struct args, shard_tokens)},
    [FLAG_THREADS] = {"--threads", NULL, "N", "default: one a core", IS_NUMBER,
                      offsetof(struct args, threads)},
    [FLAG_VOCAB] = {"--vocab", NULL, "N", "how many tokens the tokenizer is to have", IS_COUNT,
                    offsetof(struct args, vocab)},
    [FLAG_IDS] = {"--ids", NULL, "u16|u32", "of a file of nothing but token ids", IS_TEXT,
                  offsetof(struct args, ids)},
    [FLAG_SHOW] = {"--show", NULL, "PICTURE", "draw the mesh, sharding, schedule or memory",
                   IS_TEXT, offsetof(struct args, show)},
    [FLAG_DEVICE_FILE] = {"--device-file", NULL, "FILE",
                          "more device models, one a line: NAME:memory=80GB,flops=989e12", IS_TEXT,
                          offsetof(struct args, device_file)},
    [FLAG_CONTINUE] = {"--continue", NULL, "JOB",
                       "a job that has ended or is held continues with this file's settings",
                       IS_TEXT, offsetof(struct args, continues)},
    [FLAG_FROM_STEP] = {"--from-step", NULL, "N",
                        "continue from the checkpoint of step N; later ones are set aside (renamed "
                        "to aside-step-…) and never used again",
                        IS_STEP, offsetof(struct args, from_step)},
    [FLAG_MESH] = {"--mesh", NULL, "MESH", "devices to run on, as dp=2,tp=2; default: one", IS_TEXT,
                   offsetof(struct args, mesh)},
    [FLAG_BATCH] =
        {"--batch", NULL, "N",
         "so many rows at once; default: generate 8, eval a device's share of the training's",
         IS_NUMBER, offsetof(struct args, batch)},
    [FLAG_DATA] = {"--data", NULL, "FILE",
                   "the data set: of tokens a pattern too, as 'set/val-*'; of images with --labels",
                   IS_TEXT, offsetof(struct args, data)},
    [FLAG_LABELS] = {"--labels", NULL, "FILE", "the labels of images", IS_TEXT,
                     offsetof(struct args, labels)},
    [FLAG_PROMPT] = {"--prompt", "-p", "TEXT", "the text to continue", IS_TEXT,
                     offsetof(struct args, prompt)},
    [FLAG_PROMPTS] = {"--prompts", NULL, "FILE",
                      "a text a line to continue, in JSON's quotes if it begins with one; -: of "
                      "standard input",
                      IS_TEXT, offsetof(struct args, prompts)},
    [FLAG_TOKENS] = {"--tokens", NULL, "N",
                     "to add at most; default: 100, or as many as the context holds", IS_COUNT,
                     offsetof(struct args, tokens)},
    [FLAG_SAMPLES] = {"--samples", NULL, "N", "continuations of each text; default: 1", IS_NUMBER,
                      offsetof(struct args, samples)},
    [FLAG_TEMPERATURE] = {"--temperature", NULL, "T",
                          "draw by the softmax of logits / T; default: 0, the most likely token",
                          IS_REAL, offsetof(struct args, temperature)},
    [FLAG_TOP_K] = {"--top-k", NULL, "K", "draw among the K most likely; default: 0, all",
                    IS_NUMBER, offsetof(struct args, top_k)},
    [FLAG_TOP_P] = {"--top-p", NULL, "P",
                    "draw among the fewest that have the share P together; default: 1", IS_REAL,
                    offsetof(struct args, top_p)},
    [FLAG_MIN_P] = {"--min-p", NULL, "P",
                    "draw among those that have the share P of the most likely one's; default: 0",
                    IS_REAL, offsetof(struct args, min_p)},
    [FLAG_PENALTY] = {"--penalty", NULL, "P",
                      "repetition penalty: logits of what the text holds, / P or · P; default: 1",
                      IS_REAL, offsetof(struct args, penalty)},
    [FLAG_SEED] = {"--seed", NULL, "N", "of the draws; default: 0", IS_NUMBER,
                   offsetof(struct args, seed)},
    [FLAG_STOP] = {"--stop", NULL, "TEXT", "end before this text; repeatable", IS_STOPS,
                   offsetof(struct args, stop)},
    [FLAG_STOP_IDS] = {"--stop-ids", NULL, "IDS", "end before one of these tokens, as 0,2", IS_TEXT,
                       offsetof(struct args, stop_ids)},
    [FLAG_CONTEXT] = {"--context", NULL, "N",
                      "tokens that the model sees at most; default: its model.seq", IS_NUMBER,
                      offsetof(struct args, context)},
    [FLAG_SLIDE] = {"--slide", NULL, NULL, "a full context continues with its last three quarters",
                    IS_SWITCH, offsetof(struct args, slide)},
    [FLAG_CHUNK] = {"--chunk", NULL, "N",
                    "tokens of a prompt that are computed at once at most; default: 64", IS_NUMBER,
                    offsetof(struct args, chunk)},
    [FLAG_NO_CACHE] = {"--no-cache", NULL, NULL,
                       "keep no keys: each token takes a whole forward pass", IS_SWITCH,
                       offsetof(struct args, no_cache)},
    [FLAG_GENERATE] = {"--generate", NULL, NULL,
                       "what `weft generate` needs on --mesh, not what the training does",
                       IS_SWITCH, offsetof(struct args, generate)},
    [FLAG_TO] = {"--to", NULL, "hf|npz", "as transformers has it (default), or arrays of numpy",
                 IS_TEXT, offsetof(struct args, to)},
    [FLAG_DTYPE] = {"--dtype", NULL, "f32|bf16", "of what is written; default: f32", IS_TEXT,
                    offsetof(struct args, dtype)},
    [FLAG_SHARD_SIZE] = {"--shard-size", NULL, "SIZE",
                         "of a file of tensors at most, as 500MB or 5GB (default)", IS_BYTES,
                         offsetof(struct args, shard_size)},
    [FLAG_PROGRAM] = {"--program", NULL, "NAME|FILE",
                      "the program whose section `export hf` says what is what", IS_TEXT,
                      offsetof(struct args, program)},
};

const char *args_pair(const struct args_pairs *p, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < p->n; i++)
        if (strncmp(p->v[i], name, n) == 0 && p->v[i][n] == '=')
            return p->v[i] + n + 1;
    return NULL;
}

const char *flag_name(enum flag f)
{
    return rows[f].name;
}

const char *flag_brief(enum flag f)
{
    return rows[f].brief ? rows[f].brief : "";
}

const char *flag_value(enum flag f)
{
    return rows[f].value ? rows[f].value : "";
}

const char *flag_doc(enum flag f)
{
    return rows[f].doc;
}

static bool is_named(const struct flag_row *r, const char *word, size_t len)
{
    return (strlen(r->name) == len && strncmp(r->name, word, len) == 0) ||
           (r->brief && strlen(r->brief) == len && strncmp(r->brief, word, len) == 0);
}

static const struct flag_row *find_flag(const struct verb *v, const char *word, size_t len)
{
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & FLAG_BIT(i) && is_named(&rows[i], word, len))
            return &rows[i];
    return NULL;
}

static int refuse_flag(const struct verb *v, const char *word)
{
    const char *known[FLAGS], *near;
    char what[200];
    int n = 0;
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & FLAG_BIT(i))
            known[n++] = rows[i].name;
    near = suggest(word, known, n);
    snprintf(what, sizeof what, "unknown flag %.60s%s%s%s", word, near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
    return usage(v, what);
}

// "500MB", "5GB", "4096": powers of ten, as sizes of files and rates of disks are given.
static bool read_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}};
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!errno && *text >= '0' && *text <= '9' && strcmp(end, units[i].unit) == 0)
            return !__builtin_mul_overflow(n, units[i].bytes, out) && *out > 0;
    return false;
}

static int take_pair(struct args_pairs *to, const struct verb *v, const struct flag_row *r,
                     const char *value)
{
    char what[60];
    snprintf(what, sizeof what, "too many %s", r->name);
    if (to->n == ARGS_MAX_PAIRS)
        return usage(v, what);
    to->v[to->n++] = value;
    return CLIENT_OK;
}

static int take_value(struct args *a, const struct verb *v, const struct flag_row *r,
                      const char *value)
{
    char what[200], *end, *field = (char *)a + r->offset;
    if (r->type == IS_TEXT) {
        memcpy(field, &value, sizeof value);
    } else if (r->type == IS_LIST) {
        if (a->nset == ARGS_MAX_SET)
            return usage(v, "too many -s");
        a->set[a->nset++] = value;
    } else if (r->type == IS_STOPS) {
        if (a->nstop == ARGS_MAX_STOP || !*value)
            return usage(v, *value ? "too many --stop" : "--stop takes a text that is not empty");
        a->stop[a->nstop++] = value;
    } else if (r->type == IS_PAIRS) {
        return take_pair((struct args_pairs *)(void *)field, v, r, value);
    } else if (r->type == IS_BYTES) {
        uint64_t bytes;
        if (!read_bytes(value, &bytes)) {
            snprintf(what, sizeof what, "%s is a number of bytes, as 500MB or 5GB", r->name);
            return usage(v, what);
        }
        memcpy(field, &bytes, sizeof bytes);
    } else if (r->type == IS_DURATION) {
        int64_t ns;
        struct err e = {0};
        if (duration_read(value, &ns, &e) || ns <= 0) {
            snprintf(what, sizeof what, "%s takes a duration, as 90s or 5m, not '%.60s'", r->name,
                     value);
            return usage(v, what);
        }
        memcpy(field, &ns, sizeof ns);
    } else if (r->type == IS_REAL) {
        double x = strtod(value, &end);
        if (end == value || *end || !(x >= 0 && x <= 1e6)) {
            snprintf(what, sizeof what, "%s takes a number from 0, not '%.60s'", r->name, value);
            return usage(v, what);
        }
        if (x == 0 && r == &rows[FLAG_TOP_P])
            return usage(v, "--top-p takes a share above 0; without it all may be drawn");
        memcpy(field, &x, sizeof x);
    } else {
        const bool is_int = r->type == IS_NUMBER; // else an int64_t
        const int64_t least = r->type == IS_COUNT, most = is_int ? INT_MAX : INT64_MAX;
        errno = 0;
        int64_t n = strtoll(value, &end, 10);
        if (end == value || *end || errno || n < least || n > most) {
            snprintf(what, sizeof what, "%s takes a number from %d, not '%.60s'", r->name,
                     (int)least, value);
            return usage(v, what);
        }
        if (is_int)
            memcpy(field, &(int){(int)n}, sizeof(int));
        else
            memcpy(field, &n, sizeof n);
    }
    return CLIENT_OK;
}

// Reads the flag at argv[*i]; if its value is the next word, *i moves on to it.
static int take_flag(struct args *a, const struct verb *v, int *i, int argc, char **argv)
{
    const char *word = argv[*i], *eq = word[1] == '-' ? strchr(word, '=') : NULL;
    const struct flag_row *r = find_flag(v, word, eq ? (size_t)(eq - word) : strlen(word));
    char what[200];
    if (!r)
        return refuse_flag(v, word);
    if (r->type == IS_SWITCH) {
        *(bool *)((char *)a + r->offset) = true;
        return eq ? usage(v, "a switch takes no value") : CLIENT_OK;
    }
    if (!eq && *i + 1 == argc) {
        snprintf(what, sizeof what, "%s lacks its %s", word, r->value);
        return usage(v, what);
    }
    return take_value(a, v, r, eq ? eq + 1 : argv[++*i]);
}

int flags_parse(struct args *a, const struct verb *v, int argc, char **argv)
{
    bool flags = true;
    char what[200];
    *a = (struct args){.rank = -1, .from_step = -1};
    for (int i = 0; i < argc; i++) {
        int rc = CLIENT_OK;
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
        } else if (flags && argv[i][0] == '-' && argv[i][1]) {
            rc = take_flag(a, v, &i, argc, argv);
        } else if (a->npos == v->most || a->npos == ARGS_MAX) {
            snprintf(what, sizeof what, "'%.60s' is one argument too many", argv[i]);
            rc = usage(v, what);
        } else {
            a->pos[a->npos++] = argv[i];
        }
        if (rc)
            return rc;
    }
    if (a->npos >= v->least)
        return CLIENT_OK;
    snprintf(what, sizeof what, "an argument is missing: %s", v->args);
    return usage(v, what);
}

void print_usage(const struct verb *v, FILE *to)
{
    plain_printf(to, "usage: weft %s%s%s", v->name, *v->args ? " " : "", v->args);
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & FLAG_BIT(i))
            plain_printf(to, " [%s%s%s]%s", i == FLAG_SET ? "-s" : flag_name(i),
                         *flag_value(i) ? " " : "", flag_value(i), i == FLAG_SET ? "…" : "");
    plain_puts(to, "\n");
}

int refuse_word(const struct verb *v, const char *word, const char *const *known, int n)
{
    const char *near = suggest(word, known, n);
    struct buf what = {0};
    buf_printf(&what, "unknown word '%.60s': it takes ", word);
    for (int i = 0; i < n; i++)
        buf_printf(&what, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", known[i]);
    if (near)
        buf_printf(&what, "; did you mean %s?", near);
    int rc = usage(v, buf_str(&what));
    buf_clear(&what);
    return rc;
}

int usage(const struct verb *v, const char *what)
{
    plain_error("weft %s: %s", v->name, what);
    print_usage(v, stderr);
    return CLIENT_USAGE;
}
