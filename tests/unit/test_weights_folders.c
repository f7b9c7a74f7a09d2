// SPDX-License-Identifier: Apache-2.0
// Folders that transformers saved, one for each family: they are imported, the program computes the
// logits that transformers computed, and what is exported again has the same bits. Each line of each
// program's section `export hf` made wrong in turn is noticed.
//
// transformers_folders.py wrote them; $WEFT_FOLDERS names others (check_peers.sh makes fresh ones).
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/ckpt/source.h"
#include "common/model/builder.h"
#include "common/weights/described.h"
#include "common/weights/foreign.h"
#include "common/weights/foreign_files.h"
#include "tests/support/interp.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"

static const double LIMIT = 1e-5, NOTICED = 1e-4; // of logits
static const double NORM = 6e-8; // of a norm's weight that is stored less 1: the 1 is rounded

struct folders {
    char tmp[TEMP_FOLDER_MAX];
    struct arena arena;
    const char *dir;
    int n, cap;
    const char **name;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int set_up(void **state)
{
    struct folders *f = calloc(1, sizeof *f);
    const char *given = getenv("WEFT_FOLDERS");
    struct dirent *it;
    *state = f;
    f->dir = given ? given : "tests/parity/folders";
    DIR *d = opendir(f->dir);
    if (!d || temp_folder_make(f->tmp, "weights"))
        return -1;
    while ((it = readdir(d)))
        if (*it->d_name != '.' && !strchr(it->d_name, '.')) {
            f->name = arena_grow(&f->arena, f->name, sizeof *f->name, f->n, &f->cap);
            f->name[f->n++] = arena_strdup(&f->arena, it->d_name);
        }
    closedir(d);
    qsort(f->name, (size_t)f->n, sizeof *f->name, compare_names);
    return f->n >= 12 ? 0 : -1;
}

static int tear_down(void **state)
{
    struct folders *f = *state;
    temp_folder_remove(f->tmp);
    arena_clear(&f->arena);
    free(f);
    return 0;
}

static const char *in_tmp(struct folders *f, const char *name)
{
    return arena_printf(&f->arena, "%s/%s", f->tmp, name);
}

static void remove_all(const char *path)
{
    char line[4096];
    snprintf(line, sizeof line, "rm -rf '%s'", path);
    assert_int_equal(system(line), 0);
}

// ---- logits --------------------------------------------------------------------------------------

// The last value with a row for each position and an entry for each token.
static int find_logits(const struct graph *g, int64_t seq, int64_t vocab)
{
    int found = -1;
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *x = &g->values[v];
        if (x->shape.n == 3 && x->shape.dim[1] == seq && x->shape.dim[2] == vocab &&
            x->producer >= 0)
            found = v;
    }
    assert_true(found >= 0);
    return found;
}

static void set_params(struct interp *x, struct load *l)
{
    struct err e = {0};
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *p = &x->g->values[v];
        if (p->kind != VALUE_PARAM)
            continue;
        struct box whole = {.shape = p->shape};
        int64_t n = shape_count(&p->shape);
        float *w = malloc((size_t)n * sizeof *w);
        double *d = malloc((size_t)n * sizeof *d);
        if (load_read(l, p->name, DT_F32, &p->shape, &whole, w, &e))
            fail_msg("%s", e.text);
        for (int64_t i = 0; i < n; i++)
            d[i] = w[i];
        interp_set(x, p->name, d);
        free(w);
        free(d);
    }
}

static void feed_if_read(struct interp *x, const char *name, const double *whole)
{
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].name && strcmp(x->g->values[v].name, name) == 0) {
            interp_set(x, name, whole);
            return;
        }
}

static void *read_tensor(struct foreign_files *golden, const char *name, struct shape *shape)
{
    const struct foreign_stored *t = foreign_find(golden, name);
    assert_non_null(t);
    void *to = malloc(t->slice.bytes);
    *shape = t->slice.shape;
    assert_int_equal(pread(golden->files[t->file].fd, to, t->slice.bytes, (off_t)t->slice.at),
                     (ssize_t)t->slice.bytes);
    return to;
}

// A folder's tensors, as the reader of foreign files gives them.
static void open_one(struct folders *f, const char *file, struct foreign_files *out)
{
    struct err e = {0};
    const char *dir = in_tmp(f, "one");
    char line[4096];
    remove_all(dir);
    snprintf(line, sizeof line, "mkdir '%s' && cp '%s' '%s/model.safetensors'", dir, file, dir);
    assert_int_equal(system(line), 0);
    if (foreign_open(out, dir, &e))
        fail_msg("%s", e.text);
}

// How far the checkpoint's logits are from those that transformers computed.
static double logits_off(struct folders *f, const char *name, const char *ckpt)
{
    struct foreign_files golden;
    struct load l;
    struct described d;
    struct manifest_source pin;
    struct arena a = {0};
    struct graph g;
    struct interp x;
    struct err e = {0};
    struct shape ids, wanted;
    open_one(f, arena_printf(&f->arena, "%s/%s.safetensors", f->dir, name), &golden);
    int32_t *tokens = read_tensor(&golden, "tokens", &ids);
    float *want = read_tensor(&golden, "logits", &wanted);
    int64_t batch = ids.dim[0], seq = ids.dim[1], vocab = wanted.dim[2];
    if (source_open(&l, NULL, ckpt, -1, &a, &pin, &e) ||
        described_read(&d, &a, l.manifest.resolved, NULL, &e))
        fail_msg("%s", e.text);
    struct model_run run = {.kind = PROGRAM_EVAL, .batch = batch, .step_batch = batch};
    graph_init(&g, &a, NULL, &e);
    if (model_build(&g, d.job.model.sizes, &run))
        fail_msg("%s", e.text);
    double *in = malloc((size_t)(batch * seq) * sizeof *in), one = 1;
    interp_init(&x, &g, NULL, 1);
    set_params(&x, &l);
    for (int64_t i = 0; i < batch * seq; i++)
        in[i] = tokens[i];
    feed_if_read(&x, "tokens", in);
    feed_if_read(&x, "targets", in);
    for (int64_t i = 0; i < batch * seq; i++)
        in[i] = (double)(i % seq);
    feed_if_read(&x, "positions", in);
    feed_if_read(&x, "one", &one);
    interp_phase(&x, PHASE_FORWARD, 0);
    int64_t width = model_sizes_whole(&d.sizes, "vocab", 0), padded = 0;
    for (int i = 0; i < d.params.n; i++)
        if (strcmp(d.params.param[i].name, "embed/tokens") == 0)
            padded = d.params.param[i].shape.dim[0];
    assert_int_equal(width, vocab);
    const double *got = x.value[find_logits(&g, seq, padded)];
    double off = 0;
    for (int64_t i = 0; i < batch * seq; i++)
        for (int64_t v = 0; v < vocab; v++) {
            double by = fabs(got[i * padded + v] - want[i * vocab + v]);
            off = by <= off ? off : by; // a NaN stays
        }
    interp_clear(&x);
    free(in);
    free(tokens);
    free(want);
    load_close(&l);
    foreign_close(&golden);
    arena_clear(&a);
    return off;
}

// ---- both ways -----------------------------------------------------------------------------------

static int import_folder(struct folders *f, const char *from, const char *program, const char *out,
                         struct err *e)
{
    struct arena a = {0};
    struct import_result r;
    struct import_options o = {.dir = from, .out = out, .program = program};
    (void)f;
    int rc = weights_import(&o, &a, &r, e);
    arena_clear(&a);
    return rc;
}

static void export_to(const char *ckpt, const char *out, bool bf16)
{
    struct export_options o = {
        .checkpoint = ckpt, .step = -1, .dir = out, .bf16 = bf16, .shard_bytes = 1 << 30};
    struct export_result r;
    struct err e = {0};
    if (weights_export(&o, &r, &e))
        fail_msg("%s", e.text);
}

static void expect_same_tensors(const char *name, const char *one, const char *other)
{
    struct foreign_files a, b;
    struct err e = {0};
    if (foreign_open(&a, one, &e) || foreign_open(&b, other, &e))
        fail_msg("%s", e.text);
    assert_int_equal(a.ntensors, b.ntensors);
    for (int i = 0; i < a.ntensors; i++) {
        struct shape s, t;
        const char *tensor = a.tensors[i].slice.name;
        const struct foreign_stored *there = foreign_find(&b, tensor);
        if (!there || strcmp(there->slice.type, a.tensors[i].slice.type) != 0)
            fail_msg("%s: %s is not in both", name, tensor);
        void *x = read_tensor(&a, tensor, &s), *y = read_tensor(&b, tensor, &t);
        bool rounded = strncmp(name, "gemma2", 6) == 0 && strstr(tensor, "norm") &&
                       strcmp(there->slice.type, "F32") == 0;
        assert_true(shape_equal(&s, &t));
        for (int64_t k = 0; rounded && k < shape_count(&s); k++)
            if (!(fabsf(((float *)x)[k] - ((float *)y)[k]) <= (float)NORM))
                fail_msg("%s: %s differs", name, tensor);
        if (!rounded && memcmp(x, y, there->slice.bytes) != 0)
            fail_msg("%s: %s differs", name, tensor);
        free(x);
        free(y);
    }
    foreign_close(&a);
    foreign_close(&b);
}

static void every_family_is_read_and_written(void **state)
{
    struct folders *f = *state;
    for (int i = 0; i < f->n; i++) {
        struct err e = {0};
        const char *from = arena_printf(&f->arena, "%s/%s", f->dir, f->name[i]);
        const char *ckpt = in_tmp(f, "ckpt"), *out = in_tmp(f, "out"), *half = in_tmp(f, "half"),
                   *again = in_tmp(f, "again"), *last = in_tmp(f, "last");
        if (import_folder(f, from, NULL, ckpt, &e))
            fail_msg("%s", e.text);
        double off = logits_off(f, f->name[i], ckpt);
        if (!(off <= LIMIT))
            fail_msg("%s: logits are off by %.3e", f->name[i], off);
        export_to(ckpt, out, false);
        expect_same_tensors(f->name[i], from, out);
        export_to(ckpt, half, true);
        if (import_folder(f, half, NULL, again, &e))
            fail_msg("%s", e.text);
        export_to(again, last, true);
        expect_same_tensors(f->name[i], half, last);
        remove_all(ckpt);
        remove_all(out);
        remove_all(half);
        remove_all(again);
        remove_all(last);
    }
}

// ---- lines made wrong ----------------------------------------------------------------------------

// The line with its first `what` replaced; null: it has none.
static char *replace(struct arena *a, const char *line, const char *what, const char *by)
{
    const char *at = strstr(line, what);
    return at ? arena_printf(a, "%.*s%s%s", (int)(at - line), line, by, at + strlen(what)) : NULL;
}

// {k|v} of the right side exchanged.
static char *exchange_words(struct arena *a, const char *line)
{
    const char *right = strstr(line, " = "), *bar = right ? strchr(right, '|') : NULL, *open = bar;
    if (!bar || !strchr(bar, '}'))
        return NULL;
    while (*open != '{')
        open--;
    const char *close = strchr(bar, '}');
    return arena_printf(a, "%.*s{%.*s|%.*s%s", (int)(open - line), line, (int)(close - bar) - 1,
                        bar + 1, (int)(bar - open) - 1, open + 1, close);
}

// [a, b] as [b, a].
static char *exchange_dims(struct arena *a, const char *line)
{
    const char *open = strrchr(line, '['), *comma = open ? strchr(open, ',') : NULL,
               *close = comma ? strchr(comma, ']') : NULL;
    return close ? arena_printf(a, "%.*s[%.*s, %.*s%s", (int)(open - line), line,
                                (int)(close - comma) - 2, comma + 2, (int)(comma - open) - 1,
                                open + 1, close)
                 : NULL;
}

// The ways in which a line is made wrong; *kind past the last gives null and ends. A way that does not
// apply gives "".
static const char *make_wrong(struct arena *a, const char *line, int kind, bool config)
{
    static const char *const swaps[][2] = {
        {"heads head_dim", "head_dim heads"},
        {"kv_heads head_dim", "head_dim kv_heads"},
        {"3 heads", "heads 3"},
        {"(head_dim + rotary)", "(rotary + head_dim)"},
        {"(latent + rotary)", "(rotary + latent)"},
        {"(head_dim + value)", "(value + head_dim)"},
        {" + 1", ""},
        {"turned(head_dim)", "head_dim"},
        {"turned(head_dim)", "pairs(head_dim)"},
        {"turned(head_dim)", "halves(head_dim)"},
        {"weight[0]", "weight[1]"},
        {"heads head_dim", "heads pairs(head_dim)"},
        {"heads head_dim", "heads halves(head_dim)"},
        {"heads head_dim", "heads turned(head_dim)"},
    };
    enum { SWAPS = sizeof swaps / sizeof *swaps };
    char *out;
    if (config) {
        if (kind > 1)
            return NULL;
        out = kind
                  ? replace(a, line, strstr(line, " = ") ? strstr(line, " = ") : "", " = \"wrong\"")
                  : arena_strdup(a, "");
        return kind && !strstr(line, " = ") ? "" : kind ? out : "\n";
    }
    if (kind == SWAPS + 3)
        return NULL;
    if (kind == SWAPS)
        out = exchange_words(a, line);
    else if (kind == SWAPS + 1)
        out = exchange_dims(a, line);
    else if (kind == SWAPS + 2)
        out = arena_strdup(a, "\n");
    else
        out = replace(a, line, swaps[kind][0], swaps[kind][1]);
    return out ? out : "";
}

// Whether config.json has any of the fields that the line names.
static bool names_a_field(const char *config, const char *line)
{
    char names[300], *save = NULL;
    snprintf(names, sizeof names, "%.*s", (int)(strstr(line, " = ") - line), line);
    for (char *w = strtok_r(names, ", ", &save); w; w = strtok_r(NULL, ", ", &save)) {
        char *last = strrchr(w, '.'), key[310];
        if (last && strcmp(last, ".{n}") == 0) {
            *last = 0;
            last = strrchr(w, '.');
        }
        snprintf(key, sizeof key, "\"%s\":", last ? last + 1 : w);
        const char *at = strstr(config, key);
        bool scaling = strncmp(w, "rope_scaling.", 13) == 0; // these have rope_parameters
        if (at && !scaling && strncmp(at + strlen(key), " null", 5) != 0)
            return true;
    }
    return false;
}

struct section {
    const char *head, *line[400]; // the text before the section, and its lines
    int n, tensors;               // of which from here on are of `tensors`
};

static void split_section(struct arena *a, const char *text, struct section *s)
{
    const char *at = strstr(text, "\nexport hf\n");
    assert_non_null(at);
    *s = (struct section){.head = arena_printf(a, "%.*s", (int)(at + 1 - text), text)};
    for (at++; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] != 0)) {
        assert_true(s->n < 400);
        s->line[s->n] = arena_printf(a, "%.*s", (int)strcspn(at, "\n"), at);
        if (strncmp(s->line[s->n], "  tensors", 9) == 0)
            s->tensors = s->n;
        s->n++;
    }
}

// The text with one line replaced.
static void write_changed(struct folders *f, const struct section *s, int which, const char *by)
{
    struct buf text = {0};
    struct err e = {0};
    buf_puts(&text, s->head);
    for (int i = 0; i < s->n; i++)
        buf_printf(&text, "%s\n", i == which ? by : s->line[i]);
    assert_int_equal(folder_write(f->tmp, "changed.model", buf_str(&text), FOLDER_LOOSE, &e), 0);
    buf_clear(&text);
}

// Returns whether a folder that is imported with the changed text is refused or computes something
// else.
static bool is_noticed(struct folders *f, const char *name)
{
    const char *from = arena_printf(&f->arena, "%s/%s", f->dir, name);
    const char *ckpt = in_tmp(f, "wrong");
    struct err e = {0};
    if (import_folder(f, from, in_tmp(f, "changed.model"), ckpt, &e))
        return true;
    bool noticed = !(logits_off(f, name, ckpt) <= NOTICED);
    remove_all(ckpt);
    return noticed;
}

enum { MOST_FOLDERS = 3 };
struct program_folders {
    const char *program, *folder[MOST_FOLDERS]; // with all conditions of its section
};

static int try_lines(struct folders *f, const struct program_folders *of)
{
    struct arena a = {0};
    struct section s;
    struct buf config = {0};
    struct err e = {0};
    int tried = 0, n = 0;
    split_section(&a, model_text_find(of->program)->text, &s);
    write_changed(f, &s, -1, NULL);
    for (; n < MOST_FOLDERS && of->folder[n]; n++) {
        const char *path = arena_printf(&a, "%s/%s/config.json", f->dir, of->folder[n]);
        assert_int_equal(folder_read_whole(AT_FDCWD, path, true, 1 << 20, &config, &e), 0);
        if (is_noticed(f, of->folder[n]))
            fail_msg("%s: the program's own text is refused", of->program);
    }
    for (int i = 3; i < s.n; i++) {
        const char *line = s.line[i] + strspn(s.line[i], " ");
        bool config_line = i < s.tensors;
        if (strncmp(line, "if ", 3) == 0 || strcmp(line, "else") == 0 ||
            strncmp(line, "drop ", 5) == 0 || strncmp(line, "tensors", 7) == 0 ||
            strncmp(line, "size ", 5) == 0 || (config_line && !names_a_field(config.data, line)))
            continue;
        const char *wrong;
        for (int k = 0; (wrong = make_wrong(&a, s.line[i], k, config_line)); k++) {
            if (!*wrong || strcmp(wrong, s.line[i]) == 0)
                continue;
            write_changed(f, &s, i, *wrong == '\n' ? "" : wrong);
            bool noticed = false;
            for (int q = 0; q < n && !noticed; q++)
                noticed = is_noticed(f, of->folder[q]);
            if (!noticed)
                fail_msg("%s: nobody noticed\n%s\ninstead of\n%s", of->program,
                         *wrong == '\n' ? "nothing" : wrong, s.line[i]);
            tried++;
        }
    }
    buf_clear(&config);
    arena_clear(&a);
    return tried;
}

static void each_line_made_wrong_is_noticed(void **state)
{
    static const struct program_folders of[] = {
        {"gpt2", {"gpt2"}},
        {"gpt3", {"gpt3"}},
        {"llama2", {"llama2"}},
        {"llama", {"llama3", "llama32", "llama2"}},
        {"mistral", {"mistral", "mistral_whole"}},
        {"qwen2", {"qwen2", "qwen2_other"}},
        {"qwen3", {"qwen3", "qwen3_other"}},
        {"gemma2", {"gemma2"}},
        {"mixtral", {"mixtral"}},
        {"nanochat", {"nanochat"}},
        {"deepseek-v2-lite", {"deepseek-v2-lite", "deepseek-v2-lite_short"}},
    };
    struct folders *f = *state;
    if (getenv("WEFT_FOLDERS"))
        skip(); // of texts, not of folders
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int tried = try_lines(f, &of[i]);
        print_message("%s: %d changes\n", of[i].program, tried);
        assert_true(tried > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_read_and_written),
        cmocka_unit_test(each_line_made_wrong_is_noticed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
