// SPDX-License-Identifier: Apache-2.0
// Text into shards of tokens. See prepare.h.
#include "common/data/prepare/prepare.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/rand.h"
#include "common/base/system.h"
#include "common/base/utf8.h"
#include "common/data/prepare/conveyor.h"
#include "common/data/prepare/journal.h"
#include "common/data/prepare/shards.h"

enum { KEEP_BYTES = 256 << 20 };

struct work {
    const struct prepare *p;
    struct arena arena;
    struct sources sources;
    struct journal journal;
    enum array_type type;
    int dir;
    struct shards shards[TOKEN_SPLITS];
    struct prepare_report report;
    uint64_t unkept; // bytes of tokens that were added since the shards were kept
    bool broken;     // adding or keeping failed: what the shards hold now is not kept
    bool made;       // the folder was not there
    bool begun;      // nothing is in it but what this process makes
    bool kept;       // its journal has shards
    struct prepare_result *result;
};

bool prepare_is_val(double fraction, uint64_t document)
{
    static const char site[] = "data/val";
    if (fraction <= 0)
        return false;
    // Run b of documents begins at the first d with d·f ≥ b.
    double d = (double)document, run = floor(d * fraction);
    while (ceil(run / fraction) > d)
        run--;
    while (ceil((run + 1) / fraction) <= d)
        run++;
    double first = ceil(run / fraction);
    uint64_t size = (uint64_t)(ceil((run + 1) / fraction) - first);
    // The very first document trains, so that one alone does.
    uint64_t least = run == 0 && size > 1;
    struct rand_site s = {.stream = hash_fnv1a32(site)};
    uint64_t drawn = least + rand_word(&s, (uint64_t)run) % (size - least);
    return document == (uint64_t)first + drawn;
}

// ---- a thread's work: documents become ids -----------------------------------------------------
struct encoder {
    const struct work *w;
    struct tokenizer_work *tokenizer;
    struct token_ids ids;
    struct arena line;
};

struct encoded { // of a batch, for each split
    struct buf ids[TOKEN_SPLITS], marks[TOKEN_SPLITS];
    uint64_t documents, damaged;
};

static void *encoder_new(void *context)
{
    struct work *w = context;
    struct encoder *n = heap_alloc(sizeof *n);
    n->w = w;
    n->tokenizer = tokenizer_work_new(w->p->t);
    return n;
}

static void encoder_free(void *thread)
{
    struct encoder *n = thread;
    tokenizer_work_free(n->tokenizer);
    token_ids_clear(&n->ids);
    arena_clear(&n->line);
    free(n);
}

static void encoded_clear(void *result)
{
    struct encoded *r = result;
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        buf_clear(&r->ids[split]);
        buf_clear(&r->marks[split]);
    }
}

static void put_ids(struct buf *out, const struct token_ids *ids, enum array_type type)
{
    if (type == ARRAY_U32) {
        buf_append(out, ids->data, ids->n * sizeof *ids->data);
        return;
    }
    buf_reserve(out, ids->n * sizeof(uint16_t));
    for (size_t i = 0; i < ids->n; i++) {
        uint16_t id = (uint16_t)ids->data[i];
        memcpy(out->data + out->len + i * sizeof id, &id, sizeof id);
    }
    out->len += ids->n * sizeof(uint16_t);
}

// The parts of a text that a tokenizer reads as U+FFFD.
static uint64_t count_damage(const char *s, size_t bytes)
{
    uint64_t damaged = 0;
    for (size_t i = 0, n, whole; i < bytes; i += n) {
        n = 1;
        if ((unsigned char)s[i] < 0x80)
            continue;
        n = utf8_part(s + i, bytes - i, &whole);
        damaged += n != whole;
    }
    return damaged;
}

static int encode_batch(void *thread, const struct batch *b, void *result, struct err *e)
{
    struct encoder *n = thread;
    const struct prepare *p = n->w->p;
    struct encoded *r = result;
    struct document doc = {0};
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        buf_reset(&r->ids[split]);
        buf_reset(&r->marks[split]);
    }
    r->documents = r->damaged = 0;
    if (!b->source->lines && tokenizer_is_file(tokenizer_identity(p->t)))
        r->damaged = count_damage(buf_str(&b->text), b->text.len);
    for (;;) {
        int rc = batch_document(b, p->field, &n->line, &doc, e);
        if (rc || !doc.text)
            return rc;
        n->ids.n = 0;
        rc = tokenizer_encode(p->t, n->tokenizer, doc.text, doc.len, false, &n->ids, e);
        if (rc) {
            document_locate(b, &doc, e);
            return rc;
        }
        if (doc.ends)
            token_ids_put(&n->ids, p->end);
        int split = prepare_is_val(p->val_fraction, doc.number);
        put_ids(&r->ids[split], &n->ids, n->w->type);
        if (!doc.ends)
            continue;
        struct shard_mark mark = {r->ids[split].len / array_type_size(n->w->type), doc.bytes};
        buf_append(&r->marks[split], &mark, sizeof mark);
        r->documents++;
    }
}

// ---- the caller's: ids become shards -----------------------------------------------------------
// Makes what was written durable, and then writes down how far that is.
static int keep(struct work *w, struct err *e)
{
    struct journal *j = &w->journal;
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        int rc = shards_keep(&w->shards[split], e);
        if (rc) {
            w->broken = true;
            return rc;
        }
        j->shards[split] = w->shards[split].v;
        j->nshards[split] = w->shards[split].n;
    }
    w->unkept = 0;
    int rc = journal_write(w->p->out, j, e);
    w->kept |= !rc && (j->nshards[0] || j->nshards[1]);
    return rc;
}

static int take_encoded(void *context, const struct batch *b, void *result, struct err *e)
{
    struct work *w = context;
    struct encoded *r = result;
    size_t size = array_type_size(w->type);
    bool filled = false;
    if (w->journal.complete)
        return err_set(e, ERR_DATA,
                       "%s holds more than when this was done: prepare into another folder",
                       b->name);
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        const struct buf *ids = &r->ids[split], *marks = &r->marks[split];
        int rc =
            shards_add(&w->shards[split], ids->data, ids->len / size, (const void *)marks->data,
                       marks->len / sizeof(struct shard_mark), &filled, e);
        if (rc) {
            w->broken = true;
            return rc;
        }
        w->unkept += ids->len;
        w->report.tokens += ids->len / size;
    }
    w->report.documents += r->documents;
    if (r->damaged && !w->result->damaged)
        snprintf(w->result->damaged_in, sizeof w->result->damaged_in, "%s", b->name);
    w->result->damaged += r->damaged;
    w->report.taken = b->taken;
    w->journal.at = b->to;
    w->journal.stream = b->stream;
    return filled || w->unkept >= KEEP_BYTES ? keep(w, e) : 0;
}

static int tick(void *context, struct err *e)
{
    struct work *w = context;
    if (!w->p->report || !w->p->report(w->p->context, &w->report))
        return 0;
    return err_set(e, ERR_ABORTED, "interrupted");
}

// ---- the folder --------------------------------------------------------------------------------
static int make_folder(const char *path, bool *made, struct err *e)
{
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at || !*path)
        return err_set(e, ERR_INVALID, "the path %s is too long, or empty", path);
    for (char *slash = at + 1;; slash++) {
        slash += strcspn(slash, "/");
        char after = *slash;
        *slash = 0;
        *made = mkdir(at, 0777) == 0;
        if (!*made && errno != EEXIST)
            return err_errno(e, ERR_IO, "cannot make the folder %s", at);
        if (!after)
            return 0;
        *slash = after;
    }
}

static int check_empty(const char *path, struct err *e)
{
    DIR *dir = opendir(path);
    struct dirent *d;
    int rc = dir ? 0 : err_errno(e, ERR_IO, "cannot read the folder %s", path);
    while (!rc && (d = readdir(dir)))
        if (*d->d_name != '.')
            rc = err_set(
                e, ERR_INVALID,
                "%s is not empty and was not begun by `weft data prepare` (it has %s): name "
                "another folder",
                path, d->d_name);
    if (dir)
        closedir(dir);
    return rc;
}

// Removes what was written of a preparation of which nothing was kept.
static void remove_begun(struct work *w)
{
    DIR *dir = opendir(w->p->out);
    struct dirent *d;
    while (dir && (d = readdir(dir))) {
        size_t len = strlen(d->d_name), part = strlen(SHARD_PART);
        if (len > part && strcmp(d->d_name + len - part, SHARD_PART) == 0)
            unlinkat(w->dir, d->d_name, 0);
    }
    if (dir)
        closedir(dir);
    unlinkat(w->dir, JOURNAL, 0);
}

static int lock_folder(struct work *w, struct err *e)
{
    int rc = make_folder(w->p->out, &w->made, e);
    if (rc)
        return rc;
    w->dir = open(w->p->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir < 0)
        return err_errno(e, ERR_IO, "cannot open the folder %s", w->p->out);
    if (flock(w->dir, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK
                   ? err_set(e, ERR_INVALID, "another process prepares into %s", w->p->out)
                   : err_errno(e, ERR_IO, "cannot lock the folder %s", w->p->out);
    return 0;
}

static void state_facts(struct work *w)
{
    const struct prepare *p = w->p;
    char hex[33], fraction[32];
    hash128_hex(w->sources.digest, hex);
    json_format_double(p->val_fraction, fraction);
    const char **facts = w->journal.facts;
    facts[FACT_TOKENIZER] = tokenizer_identity(p->t);
    facts[FACT_END] = arena_printf(&w->arena, "%d", p->end);
    facts[FACT_FIELD] = p->field;
    facts[FACT_VAL_FRACTION] = arena_strdup(&w->arena, fraction);
    facts[FACT_SHARD_TOKENS] = arena_printf(&w->arena, "%lld", (long long)p->shard_tokens);
    facts[FACT_INPUTS] = arena_strdup(&w->arena, hex);
}

// Finds what an earlier process left, or begins the folder.
static int begin_folder(struct work *w, struct err *e)
{
    struct journal was;
    struct err none = {0};
    int rc = journal_read(w->p->out, &w->arena, &was, &none);
    if (rc == ERR_NOTFOUND) {
        rc = check_empty(w->p->out, e);
        w->begun = !rc;
        return rc ? rc : keep(w, e);
    }
    if (rc)
        return err_set(e, rc, "%s", none.text);
    if (!was.complete && !was.nshards[0] && !was.nshards[1]) { // of any command
        remove_begun(w);
        w->begun = true;
        return keep(w, e);
    }
    rc = journal_compare(w->p->out, &was, &w->journal, e);
    w->kept = true;
    for (int split = 0; split < TOKEN_SPLITS; split++)
        for (int i = 0; i < was.nshards[split] && !rc; i++) {
            rc = shards_continue(&w->shards[split], &was.shards[split][i], was.complete, e);
            w->report.tokens += was.shards[split][i].tokens;
            if (!rc)
                rc = tick(w, e);
        }
    w->journal.at = was.at;
    w->journal.stream = was.stream;
    w->journal.complete = was.complete;
    w->report.documents = was.at.documents;
    return rc;
}

static int write_index(struct work *w, struct err *e)
{
    const struct prepare *p = w->p;
    struct token_index index = {.tokenizer = p->tokenizer,
                                .digest = tokenizer_identity(p->t),
                                .vocab = tokenizer_vocab(p->t),
                                .end = p->end,
                                .type = w->type,
                                .val_fraction = p->val_fraction,
                                .nsources = w->sources.n};
    struct buf text = {0};
    index.shards = arena_array(&w->arena, struct token_shard, w->shards[0].n + w->shards[1].n + 1);
    index.sources = arena_array(&w->arena, struct token_source, w->sources.n);
    for (int split = 0; split < TOKEN_SPLITS; split++)
        for (int i = 0; i < w->shards[split].n; i++)
            index.shards[index.nshards++] = w->shards[split].v[i];
    for (int i = 0; i < w->sources.n; i++)
        index.sources[i] = (struct token_source){w->sources.v[i].path, w->sources.v[i].size};
    token_index_print(&index, &text);
    int rc = folder_write(p->out, TOKEN_INDEX, buf_str(&text), FOLDER_DURABLE, e);
    buf_clear(&text);
    return rc;
}

// Whoever may read the shards may read what explains them.
static void share_files(const struct work *w)
{
    static const char *const names[] = {TOKEN_INDEX, TOKEN_TOKENIZER, "vocab.json", "merges.txt"};
    struct stat st;
    const struct shards *s = &w->shards[w->shards[0].n == 0];
    if (fstatat(w->dir, s->v[0].file, &st, 0) == 0)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            (void)!fchmodat(w->dir, names[i], st.st_mode & 0777, 0);
}

static int finish_folder(struct work *w, struct err *e)
{
    int rc = 0;
    if (!w->shards[0].n && !w->shards[1].n)
        return err_set(e, ERR_INVALID, "the inputs hold no documents: there is nothing to prepare");
    for (int split = 0; split < TOKEN_SPLITS && !rc; split++)
        rc = shards_complete(&w->shards[split], e);
    if (!rc && !w->journal.complete) {
        w->journal.complete = true;
        rc = keep(w, e);
    }
    if (!rc)
        rc = tokenizer_save(w->p->t, AT_FDCWD, w->p->out, e); // before a job can find a shard
    for (int split = 0; split < TOKEN_SPLITS && !rc; split++)
        rc = shards_name(&w->shards[split], e);
    if (!rc)
        rc = write_index(w, e);
    if (!rc)
        share_files(w);
    return rc;
}

static void sum_up(const struct work *w, struct prepare_result *r)
{
    r->type = w->type;
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        const struct token_index of = {.shards = w->shards[split].v, .nshards = w->shards[split].n};
        r->shards[split] = of.nshards;
        r->sum[split] = token_index_sum(&of, split);
    }
}

static int convert(struct work *w, struct err *e)
{
    const struct prepare *p = w->p;
    struct documents docs;
    struct conveyor use = {.threads = p->threads,
                           .context = w,
                           .result_size = sizeof(struct encoded),
                           .thread_new = encoder_new,
                           .thread_free = encoder_free,
                           .work = encode_batch,
                           .take = take_encoded,
                           .result_clear = encoded_clear,
                           .tick = tick};
    bool cut = strcmp(tokenizer_identity(p->t), "bytes") == 0;
    documents_init(&docs, &w->sources, p->field, cut, &w->journal.at, w->journal.stream);
    int rc = conveyor_run(&use, &docs, e);
    documents_clear(&docs);
    if (rc && !w->broken)
        (void)keep(w, NULL);
    return rc;
}

int prepare_run(const struct prepare *p, struct prepare_result *r, struct err *e)
{
    struct work w = {.p = p, .dir = -1, .result = r};
    PRE(p->threads >= 1 && p->shard_tokens >= 1 && p->shard_tokens <= INT32_MAX);
    PRE(p->val_fraction == 0 || (p->val_fraction >= PREPARE_VAL_LEAST && p->val_fraction < 1));
    PRE(p->end >= 0 && p->end < tokenizer_vocab(p->t));
    *r = (struct prepare_result){0};
    w.type = tokenizer_vocab(p->t) <= UINT16_MAX + 1 ? ARRAY_U16 : ARRAY_U32;
    int rc = sources_find(&w.sources, &w.arena, p->inputs, p->ninputs, p->format, e);
    rc = rc ? rc : lock_folder(&w, e);
    if (!rc) {
        w.report.total = w.sources.streams ? 0 : w.sources.bytes;
        state_facts(&w);
        for (int split = 0; split < TOKEN_SPLITS; split++)
            shards_init(&w.shards[split], w.dir, split, w.type, (uint64_t)p->shard_tokens,
                        tokenizer_identity(p->t));
        rc = begin_folder(&w, e);
        r->found_done = !rc && w.journal.complete;
        if (!rc && (!w.journal.complete || w.sources.streams)) // a stream's text is to be the same
            rc = convert(&w, e);
        if (!rc)
            rc = finish_folder(&w, e);
        if (rc && w.begun && !w.kept) {
            remove_begun(&w);
            if (w.made)
                rmdir(p->out); // if nothing else is in it
        }
        r->kept = w.kept;
        sum_up(&w, r);
        for (int split = 0; split < TOKEN_SPLITS; split++)
            shards_clear(&w.shards[split]);
    }
    system_close(&w.dir);
    arena_clear(&w.arena);
    return rc;
}
