// SPDX-License-Identifier: Apache-2.0
// The model section: programs by name, their published sizes, programs of the user's own.
#include "common/base/folder.h"
#include "common/language/model_program.h"
#include "common/language/model_sizes.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/job_case.h"

#define HEAD                       \
    "name: t\ntrain: {steps: 1}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 4}\nmodel:\n"

// ---- sizes -------------------------------------------------------------------------------------

// The published shapes: layers, width, heads, key heads, elements of a head, hidden, context, ids.
static const struct {
    const char *model;
    int64_t size[8];
} published[] = {
    {"program: gpt2", {12, 768, 12, 0, 64, 3072, 1024, 50257}},
    {"program: gpt2, size: 350m", {24, 1024, 16, 0, 64, 4096, 1024, 50257}},
    {"program: gpt2, size: 774m", {36, 1280, 20, 0, 64, 5120, 1024, 50257}},
    {"program: gpt2, size: 1558m", {48, 1600, 25, 0, 64, 6400, 1024, 50257}},
    {"program: llama", {16, 2048, 32, 8, 64, 8192, 8192, 128256}},
    {"program: llama, size: 3b", {28, 3072, 24, 8, 128, 8192, 8192, 128256}},
    {"program: llama, size: 8b", {32, 4096, 32, 8, 128, 14336, 8192, 128256}},
    {"program: llama, size: 70b", {80, 8192, 64, 8, 128, 28672, 8192, 128256}},
    {"program: llama, size: 405b", {126, 16384, 128, 8, 128, 53248, 8192, 128256}},
    {"program: cookbook", {4, 512, 8, 0, 128, 2048, 128, 256}},
};
enum { PUBLISHED = sizeof published / sizeof *published, SIZES = 8 };
static const char *const keys[SIZES] = {"layers",   "embed", "heads", "kv_heads",
                                        "head_dim", "mlp",   "seq",   "vocab"};

static void expect_sizes(const char *text, const char *what, const int64_t want[SIZES])
{
    struct job_case c;
    case_valid(&c, text);
    for (int k = 0; k < SIZES; k++) {
        int64_t got = model_sizes_whole(c.job.model.sizes, keys[k], 0);
        if (got != want[k])
            fail_msg("%s: %s is %lld", what, keys[k], (long long)got);
    }
    case_clear(&c);
}

static void sizes_by_name_are_the_published_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        char text[300];
        snprintf(text, sizeof text, HEAD "  {%s}\n", published[i].model);
        expect_sizes(text, published[i].model, published[i].size);
    }
}

// All at once, so that nothing follows from anything; key heads are llama's alone.
static void every_size_may_be_given(void **state)
{
    static const int64_t own[SIZES] = {3, 40, 6, 2, 10, 56, 17, 300};
    (void)state;
    for (int i = 0; i < PUBLISHED; i++) {
        struct buf text = {0};
        int64_t want[SIZES];
        buf_printf(&text, HEAD "  {%s", published[i].model);
        for (int k = 0; k < SIZES; k++) {
            bool has = published[i].size[k] > 0;
            want[k] = has ? own[k] : 0;
            if (has)
                buf_printf(&text, ", %s: %lld", keys[k], (long long)own[k]);
        }
        buf_puts(&text, "}\n");
        expect_sizes(buf_str(&text), published[i].model, want);
        buf_clear(&text);
    }
}

static void expect_refusal(const char *text, const char *says)
{
    struct job_case c;
    assert_int_equal(case_read(&c, text, strlen(text), NULL, 0), ERR_INVALID);
    if (c.errors.n != 1 || strcmp(buf_str(&c.text), says) != 0)
        fail_msg("wanted '%s', got '%s'", says, buf_str(&c.text));
    case_clear(&c);
}

static void a_size_that_does_not_fit_is_refused_where_it_stands(void **state)
{
    (void)state;
    expect_refusal(HEAD "  {program: gpt2, layers: 0}\n",
                   "job.yaml:5:27: model.layers: 0 is too small: it must be at least 1\n");
    expect_refusal(HEAD "  {program: gpt2, size: 124b}\n",
                   "job.yaml:5:25: model.size: '124b' is not one of 124m, 350m, 774m or 1558m: did "
                   "you mean 124m?\n");
    expect_refusal(HEAD "  {program: gpt2, kvheads: 2}\n",
                   "job.yaml:5:19: model.kvheads: unknown key: did you mean model.heads?\n");
    expect_refusal(HEAD "  {program: gpt2, layers: many}\n",
                   "job.yaml:5:27: model.layers: must be a whole number of layers, not 'many'\n");
}

// What follows from what the model reads is not asked of one that cannot be read.
static void a_program_that_is_not_known_is_the_only_error(void **state)
{
    (void)state;
    expect_refusal("name: t\ntrain: {steps: 1}\nmodel: {program: gtp2}\n"
                   "data: {tokenizer: bytes, train: {tokens: t}, eval: {tokens: e}, batch: 4}\n"
                   "eval: {sample: {prompt: hello}}\n",
                   "job.yaml:3:18: model.program: 'gtp2' does not come with weft: did you mean "
                   "gpt2?\n");
}

static void an_override_gives_a_size(void **state)
{
    struct job_case c;
    static const char *const set[] = {"model.layers=2", "model.program=llama"};
    static const char text[] = HEAD "  {program: gpt2, heads: 4}\n";
    (void)state;
    assert_int_equal(case_read(&c, text, strlen(text), set, 2), 0);
    assert_string_equal(c.job.model.program, "llama");
    assert_int_equal(c.job.pipeline.layers, 2);
    assert_int_equal(model_sizes_whole(c.job.model.sizes, "kv_heads", 0), 4);
    case_clear(&c);
}

// ---- programs of one's own ---------------------------------------------------------------------

#define OWN                                                               \
    "# One layer.\n"                                                      \
    "sizes\n"                                                             \
    "  width = 8 in 1 .. 64  # of the \\ \"hidden\" layer \xe2\x80\xa6\n" \
    "\n"                                                                  \
    "model\n"                                                             \
    "  x = images\n"                                                      \
    "  loss = sum(linear(x, out[_, width, inner = width]))\n"
#define IMAGES "name: t\ntrain: {steps: 1}\ndata: {train: {images: i}, batch: 4}\n"

struct own {
    char dir[TEMP_FOLDER_MAX], path[128];
    struct arena a;
    struct job job;
    struct job_errors errs;
    struct buf text;
};

// A job file in a folder of its own, beside "mine.model" with this text (null: without).
static void own_load(struct own *o, const char *program, const char *job)
{
    memset(o, 0, sizeof *o);
    assert_int_equal(temp_folder_make(o->dir, "model"), 0);
    arena_init(&o->a);
    if (program)
        assert_int_equal(folder_write(o->dir, "mine.model", program, FOLDER_LOOSE, NULL), 0);
    assert_int_equal(folder_write(o->dir, "job.yaml", job, FOLDER_LOOSE, NULL), 0);
    snprintf(o->path, sizeof o->path, "%s/job.yaml", o->dir);
    if (job_load(&o->a, &weft_schema, o->path, NULL, 0, &o->job, &o->errs))
        job_errors_print(&o->errs, &o->text);
    else
        job_print(&o->job, &o->text);
}

static void own_clear(struct own *o)
{
    temp_folder_remove(o->dir);
    buf_clear(&o->text);
    arena_clear(&o->a);
}

static void the_text_of_an_own_program_travels_in_the_resolved_job(void **state)
{
    struct own o;
    struct job_case again;
    (void)state;
    own_load(&o, OWN, IMAGES "model: {program: ./mine.model, width: 16}\n");
    if (o.errs.n)
        fail_msg("%s", buf_str(&o.text));
    temp_folder_remove(o.dir); // nothing is read from here on
    assert_int_equal(case_read(&again, buf_str(&o.text), o.text.len, NULL, 0), 0);
    assert_string_equal(again.job.model.text, OWN);
    assert_int_equal(model_sizes_whole(again.job.model.sizes, "width", 0), 16);
    assert_string_equal(buf_str(&again.text), buf_str(&o.text));
    case_clear(&again);
    own_clear(&o);
}

static void line_ends_tabs_and_blank_ends_do_not_change_what_travels(void **state)
{
    struct own o;
    (void)state;
    own_load(&o,
             "\xef\xbb\xbf# One\r\nsizes   \r\n  width\t= 8\r\nmodel\r\n  loss = sum(images)  "
             "\r\n\r\n  \r\n",
             IMAGES "model: {program: mine.model}\n");
    if (o.errs.n)
        fail_msg("%s", buf_str(&o.text));
    assert_string_equal(o.job.model.text,
                        "# One\nsizes\n  width = 8\nmodel\n  loss = sum(images)\n");
    own_clear(&o);
}

static void tabs_alone_may_indent(void **state)
{
    struct own o;
    (void)state;
    own_load(&o, "sizes\n\twidth = 3\n  # said with blanks\nmodel\n\tloss\t= sum(images)\n \n",
             IMAGES "model: {program: mine.model}\n");
    if (o.errs.n)
        fail_msg("%s", buf_str(&o.text));
    own_clear(&o);
}

static void what_is_wrong_with_an_own_program_is_reported_with_its_file(void **state)
{
    static const struct {
        const char *program, *model, *says;
    } cases[] = {
        {"sizes\n  width = 3 +\nmodel\n  loss = sum(images)\n", "./mine.model",
         "./mine.model:2:14: a value is missing\n"},
        {"sizes\n  width = 3\nmodel\n  loss = \xff\n", "./mine.model",
         "/mine.model:4:10: byte 0xff is not UTF-8: save the file as UTF-8\n"},
        {"sizes\n  width = 3\n\n\t\nmodel\n\tloss = sum(images)\n", "./mine.model",
         "/mine.model:6:1: tabs and spaces both indent: use spaces alone\n"},
        {"model\n  if training\n\t  loss = sum(images)\n", "./mine.model",
         "/mine.model:3:1: tabs and spaces both indent: use spaces alone\n"},
        {NULL, "./mine.model", "/mine.model: No such file or directory\n"},
        {NULL, "gpt7",
         "job.yaml:4:18: model.program: 'gpt7' does not come with weft: did you mean "
         "gpt2?\n"},
        {NULL, "./", "model.program: cannot read "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct own o;
        char job[200];
        snprintf(job, sizeof job, IMAGES "model: {program: %s}\n", cases[i].model);
        own_load(&o, cases[i].program, job);
        if (o.errs.n != 1 || !strstr(buf_str(&o.text), cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, buf_str(&o.text));
        own_clear(&o);
    }
}

// A coordinator reads jobs that others sent: it must open no file that they name.
static void a_resolved_job_opens_no_file(void **state)
{
    struct arena a;
    struct job job;
    struct job_errors errs = {0};
    static const char text[] = IMAGES "model: {program: /etc/passwd}\n";
    (void)state;
    arena_init(&a);
    assert_int_equal(
        job_parse(&a, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &job, &errs),
        ERR_INVALID);
    assert_int_equal(errs.n, 1);
    assert_non_null(strstr(errs.items[0].message, "has the program's text in model.text"));
    arena_clear(&a);
}

// ---- programs that come with weft, of another version ------------------------------------------

// What another weft resolved, whose gpt2 has `now` where this one's has `was`.
static void read_other_version(struct job_case *c, const char *was, const char *now)
{
    struct job_case ours;
    struct buf text = {0};
    case_valid(&ours, HEAD "  {program: gpt2}\n");
    const char *at = strstr(buf_str(&ours.text), was);
    assert_non_null(at);
    buf_append(&text, buf_str(&ours.text), (size_t)(at - buf_str(&ours.text)));
    buf_printf(&text, "%s%s", now, at + strlen(was));
    case_valid(c, buf_str(&text));
    assert_string_equal(buf_str(&c->text), buf_str(&text));
    buf_clear(&text);
    case_clear(&ours);
}

static void expect_same_training(const struct job *other, bool same)
{
    struct job_case ours;
    struct buf differ = {0};
    char x[65], y[65];
    case_valid(&ours, HEAD "  {program: gpt2}\n");
    job_identity_differences(&ours.job, other, &differ);
    assert_string_equal(buf_str(&differ), same ? "" : "model.text");
    job_hash(&ours.job, x);
    job_hash(other, y);
    assert_string_not_equal(x, y);
    buf_clear(&differ);
    case_clear(&ours);
}

static void a_resolved_job_keeps_the_text_of_the_weft_that_resolved_it(void **state)
{
    struct job_case c;
    (void)state;
    read_other_version(&c, "gelu(linear(", "relu(linear(");
    assert_non_null(strstr(c.job.model.read->text, "h = relu(linear("));
    expect_same_training(&c.job, false);
    case_clear(&c);
}

static void another_comment_is_no_other_training(void **state)
{
    struct job_case c;
    (void)state;
    read_other_version(&c, "# tokens of a sample", "# length of a sample");
    expect_same_training(&c.job, true);
    case_clear(&c);
    read_other_version(&c, "h = gelu(linear(layernorm(x, norm2),",
                       "h  =  gelu( linear(layernorm(x,norm2),");
    expect_same_training(&c.job, true);
    case_clear(&c);
    read_other_version(&c, "normal(0.02 / sqrt(", "normal(2e-2 / sqrt(");
    expect_same_training(&c.job, true);
    case_clear(&c);
    read_other_version(&c, "\n    sizes\n", "\n\n    sizes\n      # All of them.\n");
    expect_same_training(&c.job, true);
    case_clear(&c);
}

static void a_job_resolved_without_a_text_has_todays(void **state)
{
    struct job_case c, without;
    struct buf text = {0};
    (void)state;
    case_valid(&c, HEAD "  {program: gpt2}\n");
    const char *at = strstr(buf_str(&c.text), "  text: |2\n"), *end = strstr(at, "\nmesh:");
    buf_append(&text, buf_str(&c.text), (size_t)(at - buf_str(&c.text)));
    buf_puts(&text, end + 1);
    case_valid(&without, buf_str(&text));
    assert_string_equal(buf_str(&without.text), buf_str(&c.text));
    case_clear(&without);
    case_clear(&c);
    buf_clear(&text);
}

static void an_override_of_the_program_leaves_the_text_behind(void **state)
{
    struct job_case c;
    static const char *const set[] = {"model.program=llama"};
    static const char text[] = HEAD "  {program: gpt2, width: 3, text: \"sizes\\n  width = 8\\n  "
                                    "seq = 4\\n  vocab = 9\\nmodel\\n"
                                    "  loss = sum(f32(tokens))\\n\"}\n";
    (void)state;
    case_valid(&c, text);
    assert_int_equal(model_sizes_whole(c.job.model.sizes, "width", 0), 3);
    case_clear(&c);
    assert_int_equal(case_read(&c, text, strlen(text), set, 1), ERR_INVALID);
    assert_non_null(
        strstr(buf_str(&c.text), "job.yaml:5:19: model.width: unknown key: model has "));
    case_clear(&c);
}

static void rules_may_cut_the_dimensions_that_a_program_names(void **state)
{
    struct own o;
    (void)state;
    own_load(&o, OWN,
             IMAGES "mesh: {x: 2}\nmodel: {program: mine.model}\nsharding: {rules: {width: x, "
                    "inner: x, batch: x}}\n");
    if (o.errs.n)
        fail_msg("%s", buf_str(&o.text));
    assert_int_equal(job_rule_find(&o.job.sharding, "inner")->axes.n, 1);
    own_clear(&o);
    own_load(&o, OWN,
             IMAGES "mesh: {x: 2}\nmodel: {program: mine.model}\nsharding: {rules: {widht: x}}\n");
    assert_int_equal(o.errs.n, 1);
    assert_non_null(strstr(buf_str(&o.text), ":6:20: sharding.rules.widht: unknown key: did you "
                                             "mean width?"));
    own_clear(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_by_name_are_the_published_shapes),
        cmocka_unit_test(every_size_may_be_given),
        cmocka_unit_test(a_size_that_does_not_fit_is_refused_where_it_stands),
        cmocka_unit_test(a_program_that_is_not_known_is_the_only_error),
        cmocka_unit_test(an_override_gives_a_size),
        cmocka_unit_test(the_text_of_an_own_program_travels_in_the_resolved_job),
        cmocka_unit_test(line_ends_tabs_and_blank_ends_do_not_change_what_travels),
        cmocka_unit_test(tabs_alone_may_indent),
        cmocka_unit_test(what_is_wrong_with_an_own_program_is_reported_with_its_file),
        cmocka_unit_test(a_resolved_job_opens_no_file),
        cmocka_unit_test(a_resolved_job_keeps_the_text_of_the_weft_that_resolved_it),
        cmocka_unit_test(another_comment_is_no_other_training),
        cmocka_unit_test(a_job_resolved_without_a_text_has_todays),
        cmocka_unit_test(an_override_of_the_program_leaves_the_text_behind),
        cmocka_unit_test(rules_may_cut_the_dimensions_that_a_program_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
