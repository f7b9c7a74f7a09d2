// SPDX-License-Identifier: Apache-2.0
// The resolved job: whole, stable under reading it again, and a hash of what it means. The schema's
// table in its three forms.
#include "common/job/reading.h"
#include "tests/unit/job_case.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/language/model_program.h"

// Reads the resolved text of `c` again and expects the same text and hash.
static void expect_stable(const struct job_case *c)
{
    struct job_case again;
    case_valid(&again, buf_str(&c->text));
    assert_string_equal(buf_str(&again.text), buf_str(&c->text));
    char a[65], b[65];
    job_hash(&c->job, a);
    job_hash(&again.job, b);
    assert_string_equal(a, b);
    case_clear(&again);
}

// Takes the block out that is the program's own text, line for line.
static void drop_text(struct job_case *c)
{
    struct buf block = {0};
    buf_puts(&block, "  text: |2\n");
    for (const char *line = model_text_find("mlp")->text; *line; line += strcspn(line, "\n") + 1)
        buf_printf(&block, "%s%.*s\n", *line == '\n' ? "" : "    ", (int)strcspn(line, "\n"), line);
    char *at = strstr(c->text.data, buf_str(&block));
    assert_non_null(at);
    memmove(at, at + block.len, strlen(at + block.len) + 1);
    buf_clear(&block);
}

static void test_the_resolved_job_says_every_value(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "mesh: {dp: 2}\n");
    drop_text(&c);
    assert_string_equal(buf_str(&c.text), "schema: 2\n"
                                          "name: tiny\n"
                                          "tags: []\n"
                                          "notify: []\n"
                                          "model:\n"
                                          "  program: mlp\n"
                                          "  inputs: 4\n"
                                          "  hidden: [8]\n"
                                          "  classes: 3\n"
                                          "  activation: relu\n"
                                          "mesh: {dp: 2}\n"
                                          "sharding:\n"
                                          "  rules: {batch: [dp, fsdp, ep], seq: cp, embed: fsdp, "
                                          "heads: tp, mlp: tp, vocab: tp, layers: pp, expert: "
                                          "[tp, ep], norm: null, position: null}\n"
                                          "  params: []\n"
                                          "  activations: {}\n"
                                          "  grads: []\n"
                                          "  optimizer: []\n"
                                          "  gather: [fsdp]\n"
                                          "pipeline:\n"
                                          "  schedule: 1f1b\n"
                                          "  chunks: 1\n"
                                          "  layers: 2\n"
                                          "  stages: []\n"
                                          "precision:\n"
                                          "  compute: f32\n"
                                          "  reduce: f32\n"
                                          "  deterministic: true\n"
                                          "data:\n"
                                          "  format: idx\n"
                                          "  dtype: u8\n"
                                          "  train:\n"
                                          "    images: x\n"
                                          "    labels: \"y\"\n" // YAML 1.1 readers take y for true
                                          "  batch: 12\n"
                                          "  batch_per_device: 0\n"
                                          "optimizer:\n"
                                          "  kind: adamw\n"
                                          "  betas: [0.9, 0.999]\n"
                                          "  eps: 1e-8\n"
                                          "  weight_decay: 0.01\n"
                                          "  clip_norm: 0\n"
                                          "  groups: []\n"
                                          "schedule:\n"
                                          "  kind: constant\n"
                                          "  value: 0.001\n"
                                          "train:\n"
                                          "  steps: 10\n"
                                          "  microbatches: 1\n"
                                          "  seed: 0\n"
                                          "  remat: none\n"
                                          "  fuse: true\n"
                                          "  pack_heads: true\n"
                                          "  log_every: 1\n"
                                          "checkpoint:\n"
                                          "  every: 0\n"
                                          "  first: false\n"
                                          "  keep: 3\n"
                                          "  keep_every: 0\n"
                                          "  best: none\n"
                                          "  dir: ckpt\n"
                                          "  async: true\n"
                                          "  patience: 24h\n"
                                          "metrics:\n"
                                          "  jsonl: true\n"
                                          "  detail: 0\n"
                                          "  sinks: []\n"
                                          "resources:\n"
                                          "  devices: 2\n"
                                          "  kind: cpu\n"
                                          "  threads: 0\n"
                                          "  hosts: 0\n"
                                          "  priority: 0\n"
                                          "  scratch: 0\n"
                                          "  bucket: 16\n"
                                          "  network: encrypted\n"
                                          "  collectives: auto\n"
                                          "restart:\n"
                                          "  budget: 5\n"
                                          "  per: 1h\n"
                                          "  backoff: [1s, 1m]\n"
                                          "  hang_after: 5s\n");
    case_clear(&c);
    case_valid(&c, VALID "mesh: {dp: 2}\n");
    expect_stable(&c);
    case_clear(&c);
}

static void test_the_hash_is_of_the_resolved_text(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID);
    char hash[65], of_text[65];
    job_hash(&c.job, hash);
    sha256_hex(c.text.data, c.text.len, of_text);
    assert_string_equal(hash, of_text);
    case_clear(&c);
}

static void expect_same_hash(const char *one, const char *other, bool same)
{
    struct job_case a, b;
    char x[65], y[65];
    case_valid(&a, one);
    case_valid(&b, other);
    job_hash(&a.job, x);
    job_hash(&b.job, y);
    assert_int_equal(strcmp(x, y) == 0, same);
    case_clear(&a);
    case_clear(&b);
}

// A training may continue elsewhere, longer, at another rate, in other batches; with another seed it is
// another training.
static void test_what_may_change_while_a_training_continues_is_no_part_of_the_identity(void **state)
{
    static const char *const alike[] = {
        VALID "optimizer: {weight_decay: 0.5, clip_norm: 1, betas: [0.8, 0.9]}\n",
        VALID "optimizer: {groups: [{match: 'layers/*', lr_scale: 0.1}]}\n",
        VALID "precision: {compute: bf16, reduce: bf16}\n",
        VALID "checkpoint: {dir: elsewhere}\n",
        NAME_LINE MODEL_LINE TRAIN_LINE "data: {train: {images: x, labels: y}, batch: 24}\n",
        NAME_LINE MODEL_LINE TRAIN_LINE
        "data: {train: {images: /x, labels: /y}, eval: {images: x, labels: y}, batch: 12}\n",
        NAME_LINE DATA_LINE TRAIN_LINE
        "model: {program: mlp, inputs: 4, hidden: [8], classes: 3, activation: tanh}\n",
        VALID "mesh: {tp: 2}\n",
        VALID "precision: {deterministic: false}\n",
        VALID "mesh: {dp: 4}\nsharding: {rules: {batch: dp}}\n",
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 20}\n",
        VALID "schedule: {kind: linear, init: 0.1}\n",
        VALID "checkpoint: {every: 5, keep: 7, keep_every: 10, async: false, patience: 1h}\n",
        VALID "restart: {budget: 9}\n",
        VALID "metrics: {jsonl: false}\n",
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 10, pack_heads: false, log_every: 5}\n",
        NAME_LINE MODEL_LINE DATA_LINE "resources: {devices: 2}\n"
                                       "train: {steps: 10, microbatches: 2}\n"};
    struct job_case one, other;
    char x[65], y[65];
    (void)state;
    case_valid(&one, VALID);
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        struct buf keys = {0};
        case_valid(&other, alike[i]);
        job_identity_differences(&one.job, &other.job, &keys);
        assert_string_equal(buf_str(&keys), "");
        job_hash(&one.job, x);
        job_hash(&other.job, y);
        assert_string_not_equal(x, y);
        case_clear(&other);
    }
    case_clear(&one);
}

static void expect_another_training(const char *text, const char *expected_keys)
{
    struct job_case one, other;
    struct buf keys = {0};
    case_valid(&one, VALID);
    case_valid(&other, text);
    job_identity_differences(&one.job, &other.job, &keys);
    assert_string_equal(buf_str(&keys), expected_keys);
    buf_clear(&keys);
    case_clear(&other);
    case_clear(&one);
}

static void test_another_training_is_named_by_its_keys_alone(void **state)
{
    (void)state;
    expect_another_training(NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 20, seed: 2}\n",
                            "train.seed");
    expect_another_training(VALID "optimizer: {groups: [{match: 'layers/0/*', freeze: true}]}\n",
                            "optimizer.groups");
    expect_another_training(NAME_LINE DATA_LINE TRAIN_LINE
                            "model: {program: mlp, inputs: 4, hidden: [9], classes: 3}\n",
                            "model.hidden");
    // Models have keys of their own: each is compared with its namesake, wherever it stands.
    expect_another_training(NAME_LINE "model: {program: vae, inputs: 4, hidden: [8]}\n"
                                      "data: {train: {images: x}, batch: 12}\n" TRAIN_LINE,
                            "model.classes, model.text, model.latent");
}

static void test_every_key_says_what_changing_it_means(void **state)
{
    struct job_case c;
    size_t unused;
    (void)state;
    case_valid(&c, VALID);
    for (int i = 0; i < schema_rows(c.job.schema); i++) {
        const struct schema_row *row = schema_row(c.job.schema, i, &unused);
        if (!row->continues)
            fail_msg("%s", row->path);
    }
    case_clear(&c);
}

static void test_changes_are_reported_with_the_settings_of_both(void **state)
{
    struct job_case one, other;
    struct buf text = {0};
    (void)state;
    case_valid(&one, VALID);
    case_valid(&other, NAME_LINE MODEL_LINE DATA_LINE
               "train: {steps: 20}\nschedule: {kind: linear, init: 0.5}\n");
    job_changes(&one.job, &other.job, &text);
    assert_string_equal(buf_str(&text),
                        "schedule.kind from constant to linear, schedule.value from 0.001 to none, "
                        "schedule.init from none to 0.5, schedule.end from none to 0, "
                        "schedule.steps from none to 20, train.steps from 10 to 20");
    buf_clear(&text);
    case_clear(&other);
    case_clear(&one);
}

static void test_spelling_and_order_do_not_change_the_hash_but_values_do(void **state)
{
    (void)state;
    expect_same_hash(
        VALID "restart: {hang_after: 2000ms}\noptimizer: {eps: 0.00000001}\n",
        "optimizer:\n  eps: 1e-8\n  kind: adamw\nrestart:\n  hang_after: 2s\n" TRAIN_LINE DATA_LINE
            MODEL_LINE NAME_LINE,
        true);
    expect_same_hash(VALID, VALID "mesh: {dp: -1}\nresources: {devices: 1}\n", true);
    expect_same_hash(VALID "optimizer: {clip_norm: -0.0}\n", VALID, true);
    expect_same_hash(VALID, VALID "metrics: {jsonl: false}\n", false);
    expect_same_hash(VALID "checkpoint: {dir: a}\n", VALID "checkpoint: {dir: b}\n", false);
}

static void test_text_of_any_kind_prints_and_reads_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "plain",
        "a b",
        "12",
        "0x1F",
        "true",
        "No",
        "~",
        "null",
        "- a",
        "a: b",
        "a #b",
        "#a",
        "&a",
        "*a",
        "!a",
        "{a}",
        "[a]",
        "a\\b",
        "\"q\"",
        "'q'",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "?",
        " lead",
        "trail ",
        "../up",
        "./dot",
        ".5",
        "..",
        "-",
        "=",
        "<<",
        "a,b",
        "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
        "/abs/p.bin",
        "C:\\x",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buf text = {0};
        buf_puts(&text, VALID "checkpoint:\n  dir: '");
        for (const char *p = texts[i]; *p; p++)
            buf_printf(&text, *p == '\'' ? "''" : "%c", *p);
        buf_puts(&text, "'\n");
        struct job_case c;
        case_valid(&c, buf_str(&text));
        assert_string_equal(c.job.checkpoint.dir, texts[i]);
        expect_stable(&c);
        case_clear(&c);
        buf_clear(&text);
    }
}

// ---- any valid job -----------------------------------------------------------------------------
struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *d, uint64_t n)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (d->state >> 33) % n;
}

static const char *pick(struct dice *d, const char *const *words, int n)
{
    return words[roll(d, (uint64_t)n)];
}

// A double of any magnitude up to 1, all 17 digits of it.
static double any_fraction(struct dice *d)
{
    double x = (double)(1 + roll(d, 1u << 30)) / (1u << 30);
    for (uint64_t i = roll(d, 8); i > 0; i--)
        x *= 1e-5;
    return x;
}

static void random_optimizer(struct dice *d, struct buf *to)
{
    static const char *const kinds[] = {"sgd", "momentum", "adam", "adamw"};
    const char *kind = pick(d, kinds, 4);
    buf_printf(to, "optimizer:\n  kind: %s\n  clip_norm: %.17g\n", kind, any_fraction(d));
    if (strcmp(kind, "momentum") == 0)
        buf_printf(to, "  nesterov: %s\n", roll(d, 2) ? "true" : "false");
    if (kind[0] == 'a')
        buf_printf(to, "  betas: [%.17g, 0.5]\n", any_fraction(d) / 2);
    if (strcmp(kind, "adamw") == 0)
        buf_printf(to,
                   "  weight_decay: %.17g\n  groups: [{match: '*/b\"i:as', weight_decay: %.17g}, "
                   "{lr_scale: %.17g, match: x*}, {match: y, freeze: true}]\n",
                   any_fraction(d), any_fraction(d), any_fraction(d));
}

static void random_job(struct dice *d, struct buf *to)
{
    static const char *const activations[] = {"relu", "gelu", "tanh"};
    static const char *const units[] = {"s", "m", "h"};
    int dp = 1 + (int)roll(d, 8), micro = 1 + (int)roll(d, 4);
    buf_printf(to,
               "name: n%d\nmodel: {program: mlp, inputs: %d, hidden: [%d, %d], classes: %d, "
               "activation: %s}\n",
               (int)roll(d, 1000), 1 + (int)roll(d, 5000), 1 + (int)roll(d, 512),
               1 + (int)roll(d, 512), 2 + (int)roll(d, 100), pick(d, activations, 3));
    buf_printf(to, "mesh: {%s: %d}\n", roll(d, 2) ? "dp" : "data", dp);
    buf_printf(to, "data: {train: {images: i, labels: l}, batch: %d, dtype: %s%s}\n",
               dp * micro * (1 + (int)roll(d, 50)), roll(d, 2) ? "u8" : "f32",
               roll(d, 2) ? ", eval: {images: a, labels: b}" : "");
    random_optimizer(d, to);
    if (roll(d, 2))
        buf_printf(
            to,
            "schedule: {kind: warmup_cosine, init: %.17g, peak: %.17g, warmup: %d, decay: %d}\n",
            any_fraction(d), any_fraction(d), (int)roll(d, 100), 100 + (int)roll(d, 100));
    buf_printf(to, "train: {steps: %d, microbatches: %d, seed: %llu}\n", 100 + (int)roll(d, 1000),
               micro, (unsigned long long)(roll(d, 1u << 31) << 31 | roll(d, 1u << 31)));
    int every = 1 + (int)roll(d, 20);
    buf_printf(to, "checkpoint: {every: %d, keep_every: %d, keep: %d}\n", every,
               every * (int)roll(d, 5), 2 + (int)roll(d, 5));
    buf_printf(to, "restart: {hang_after: %d%s}\n", 1 + (int)roll(d, 24), pick(d, units, 3));
}

static void test_any_valid_job_prints_to_itself(void **state)
{
    (void)state;
    struct dice d = {20240607};
    for (int i = 0; i < 300; i++) {
        struct buf text = {0};
        random_job(&d, &text);
        struct job_case c;
        case_valid(&c, buf_str(&text));
        expect_stable(&c);
        case_clear(&c);
        buf_clear(&text);
    }
}

// ---- the schema's table ------------------------------------------------------------------------
static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

static void test_the_table_has_a_row_for_each_key(void **state)
{
    (void)state;
    struct buf text = {0}, markdown = {0};
    job_schema_print(&weft_schema, JOB_SCHEMA_TEXT, &text);
    job_schema_print(&weft_schema, JOB_SCHEMA_MARKDOWN, &markdown);
    int keys = 0;
    for (int i = 0; i < weft_schema.n; i++)
        for (int k = 0; k < weft_schema.tables[i]->n; k++, keys++) {
            const struct schema_row *row = &weft_schema.tables[i]->rows[k];
            char cell[80];
            snprintf(cell, sizeof cell, "| `%s` |", row->path);
            assert_int_equal(count(buf_str(&markdown), cell), 1);
            assert_non_null(strstr(buf_str(&text), row->doc));
        }
    assert_true(count(buf_str(&markdown), "\n") >= keys + 2);
    assert_non_null(
        strstr(buf_str(&markdown),
               "| `optimizer.eps` | number | `1e-8` |  | 1e-37 to 1 | may change | added to the "
               "root of the second moment; only when optimizer.kind is adam or adamw |"));
    buf_clear(&text);
    buf_clear(&markdown);
}

static void test_the_table_is_json_too(void **state)
{
    (void)state;
    struct arena a = {0};
    struct buf text = {0};
    struct json *root = NULL;
    struct err e;
    job_schema_print(&weft_schema, JOB_SCHEMA_JSON, &text);
    assert_int_equal(json_parse(&a, text.data, text.len, &root, &e), 0);
    const struct json *keys = json_get(root, "keys");
    assert_int_equal(json_get(root, "schema")->integer, JOB_SCHEMA_VERSION);
    for (const struct json *k = keys->first; k; k = k->next)
        if (strcmp(json_get(k, "key")->string, "train.steps") == 0) {
            assert_true(json_get(k, "required")->boolean);
            assert_string_equal(json_get(k, "unit")->string, "steps");
            assert_int_equal(json_get(k, "min")->integer, 0);
            assert_int_equal(json_get(k, "default")->type, JSON_NULL);
        }
    assert_true(keys->count > 40);
    buf_clear(&text);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_resolved_job_says_every_value),
        cmocka_unit_test(test_the_hash_is_of_the_resolved_text),
        cmocka_unit_test(
            test_what_may_change_while_a_training_continues_is_no_part_of_the_identity),
        cmocka_unit_test(test_another_training_is_named_by_its_keys_alone),
        cmocka_unit_test(test_every_key_says_what_changing_it_means),
        cmocka_unit_test(test_changes_are_reported_with_the_settings_of_both),
        cmocka_unit_test(test_spelling_and_order_do_not_change_the_hash_but_values_do),
        cmocka_unit_test(test_text_of_any_kind_prints_and_reads_back),
        cmocka_unit_test(test_any_valid_job_prints_to_itself),
        cmocka_unit_test(test_the_table_has_a_row_for_each_key),
        cmocka_unit_test(test_the_table_is_json_too),
    };
    return cmocka_run_group_tests_name("job_print", tests, NULL, NULL);
}
