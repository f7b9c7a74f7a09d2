// SPDX-License-Identifier: Apache-2.0
// Every model of one's own, tests/unit/programs, is planned, drawn and faulted as those that come with
// weft: its pictures keep to the width and name what cuts what, its report has the parameters that
// `weft model check` counts, and a sharding that does not suit it is reported with a fix that helps.
#include <dirent.h>

#include "common/explain/picture.h"
#include "common/explain/plan_report.h"
#include "common/plan/model_check.h"
#include "tests/unit/compile_case.h"

#define IMAGES "{format: npy, dtype: u8, train: {images: i, labels: l}, "
#define ALONE  "{format: npy, dtype: u8, train: {images: i}, "
#define TOKENS "{format: tokens, train: {tokens: t}, "

enum { MLP_GPT2 = 4 * 24 };

static const struct own {
    const char *name, *data;
    int64_t mlp;  // a size that the rule of mlp cuts
    bool layered; // and so may be dealt to stages
    const char *const sizes[6];
    const char *dim; // how the text calls that size; null: mlp
} owns[] = {
    {"biased", TOKENS, 16, true, {NULL}, NULL},
    {"by_hand", TOKENS, 24, true, {NULL}, NULL},
    {"capped", TOKENS, 24, true, {NULL}, NULL},
    {"encoder", IMAGES, 48, true, {NULL}, NULL},
    {"example_gpt2",
     TOKENS,
     MLP_GPT2,
     true,
     {"layers=4", "embed=24", "heads=8", "seq=24", "vocab=21", NULL},
     NULL},
    {"example_jaxformer", TOKENS, 24, true, {NULL}, NULL},
    {"example_llama", TOKENS, 48, true, {NULL}, NULL},
    {"example_palm", TOKENS, 48, true, {NULL}, NULL},
    {"example_vae", ALONE, 48, false, {NULL}, NULL},
    {"drawn", TOKENS, 24, true, {NULL}, NULL},
    {"headings", IMAGES, 48, true, {NULL}, NULL},
    {"helped", TOKENS, 24, false, {NULL}, NULL},
    {"hyper", TOKENS, 24, true, {NULL}, NULL},
    {"mixer", IMAGES, 48, true, {NULL}, NULL},
    {"multiquery", TOKENS, 24, true, {NULL}, NULL},
    {"no_attention", TOKENS, 24, true, {NULL}, NULL},
    {"ordered", TOKENS, 24, true, {NULL}, NULL},
    {"padded", TOKENS, 12, false, {"multiple=4", NULL}, NULL},
    {"parallel", TOKENS, 24, true, {NULL}, NULL},
    {"recurrent", IMAGES, 48, true, {NULL}, NULL},
    {"soft_experts", TOKENS, 16, true, {NULL}, NULL},
    {"stacked", TOKENS, 48, true, {NULL}, NULL},
    {"tied", ALONE, 48, false, {NULL}, NULL},
    {"towers", TOKENS, 48, false, {NULL}, NULL}, // it wants one microbatch
    {"two_losses", TOKENS, 24, true, {NULL}, NULL},
    {"unet", ALONE, 48, true, {NULL}, "high"},
    {"uneven", TOKENS, 24, true, {NULL}, NULL},
};
enum { OWNS = sizeof owns / sizeof *owns };

static int count_sizes(const struct own *own)
{
    int n = 0;
    while (own->sizes[n])
        n++;
    return n;
}

static const char *job_of(const struct own *own, const char *rest)
{
    static char text[1000];
    size_t len = (size_t)snprintf(
        text, sizeof text, "name: t\nmodel: {program: ./tests/unit/programs/%s.model", own->name);
    for (const char *const *s = own->sizes; *s; s++) {
        int name = (int)strcspn(*s, "=");
        len +=
            (size_t)snprintf(text + len, sizeof text - len, ", %.*s: %s", name, *s, *s + name + 1);
    }
    snprintf(text + len, sizeof text - len,
             "}\ndata: %sbatch: 24}\ntrain: {steps: 1, microbatches: %d}\n%s", own->data,
             strcmp(own->name, "towers") ? 2 : 1, rest);
    return text;
}

static void the_table_has_every_text(void **state)
{
    DIR *d = opendir("tests/unit/programs");
    int texts = 0;
    (void)state;
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t len = strlen(e->d_name);
        int i = 0;
        if (len < 7 || strcmp(e->d_name + len - 6, ".model") != 0)
            continue;
        while (i < OWNS &&
               (strncmp(owns[i].name, e->d_name, len - 6) != 0 || strlen(owns[i].name) != len - 6))
            i++;
        if (i == OWNS)
            fail_msg("%s is not looked at", e->d_name);
        texts++;
    }
    closedir(d);
    assert_int_equal(texts, OWNS);
}

// ---- pictures ----------------------------------------------------------------------------------

// All lines of a wide picture, and of a narrow one those that are drawn: its sentences are for the
// terminal to break.
static void check_width(const char *name, enum picture p, const char *text, int width)
{
    char *lines = strdup(text), *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if ((width > 80 || strstr(line, "│") || strstr(line, "─")) && text_columns(line) > width)
            fail_msg("%s, %s of %d columns: %s", name, picture_name(p), width, line);
    free(lines);
}

// `says`: what the picture must have, a text a line.
static void check_parts(const char *name, enum picture p, const char *drawn, const char *says)
{
    char parts[200], *rest = NULL;
    snprintf(parts, sizeof parts, "%s", says);
    for (char *part = strtok_r(parts, "\n", &rest); part; part = strtok_r(NULL, "\n", &rest))
        if (!strstr(drawn, part))
            fail_msg("%s: no '%s' in %s\n%s", name, part, picture_name(p), drawn);
}

static void check_pictures(const struct own *own, const char *mesh,
                           const char *const says[PICTURE_KINDS])
{
    static const int widths[] = {PICTURE_NARROWEST, 100};
    struct fixture f;
    compile_text(&f, job_of(own, mesh), 0);
    for (enum picture p = 0; p < PICTURE_KINDS; p++)
        for (int w = 0; w < 2; w++) {
            struct buf out = {0};
            picture_print(p, &f.c, widths[w], &out);
            check_width(own->name, p, buf_str(&out), widths[w]);
            check_parts(own->name, p, buf_str(&out), says[p]);
            buf_clear(&out);
        }
    fixture_clear(&f);
}

static void each_is_drawn_within_the_width(void **state)
{
    static const char *const square[] = {
        [PICTURE_MESH] = "mesh {dp: 2, tp: 2}: 4 devices\ntp=1\ndp=1 │ 2    │ 3    │\n",
        [PICTURE_SHARDING] = "on mesh {dp: 2, tp: 2}\n[dp, \n, tp\nblocks of",
        [PICTURE_SCHEDULE] = "F0\nB0\nU",
        [PICTURE_MEMORY] = "memory of a device\n  params \n  optimizer \n",
    };
    static const char *const stages[] = {
        [PICTURE_MESH] = "mesh {pp: 2, tp: 2}: 4 devices\ntp=1\npp=1 │ 2    │ 3    │\n",
        [PICTURE_SHARDING] = "on mesh {pp: 2, tp: 2}\n[tp\ncopies: 2,3",
        [PICTURE_SCHEDULE] = "2 stages and 2 microbatches\nstage 0\nstage 1\nF0\nB0\n",
        [PICTURE_MEMORY] = "memory of a device of stage \n  params \n",
    };
    (void)state;
    for (int i = 0; i < OWNS; i++) {
        check_pictures(&owns[i], "mesh: {dp: 2, tp: 2}\n", square);
        if (owns[i].layered)
            check_pictures(&owns[i], "mesh: {pp: 2, tp: 2}\n", stages);
    }
}

// ---- the report --------------------------------------------------------------------------------

// The parameters of the report, counted from its shapes, each once.
static int64_t count_params(const struct json *report)
{
    const struct json *params = json_get(report, "params");
    int64_t all = 0;
    assert_non_null(params);
    for (const struct json *p = params->first; p; p = p->next) {
        const struct json *shape = json_get(p, "shape");
        int64_t n = 1;
        assert_non_null(shape);
        for (const struct json *d = shape->first; d; d = d->next)
            n *= (int64_t)d->number;
        all += n;
    }
    return all;
}

static void check_report(const struct own *own, const char *mesh, int64_t params)
{
    struct fixture f;
    struct report r;
    struct buf text = {0};
    struct json_out w;
    struct json *report;
    struct err e = {0};
    int64_t reported;
    compile_text(&f, job_of(own, mesh), 0);
    struct device_model d = read_model(&f.a, "h100", NULL);
    report_make(&r, &f.job, &f.c, &f.found, &d, &f.a);
    json_out_init(&w, &text);
    report_json(&r, &w);
    json_out_clear(&w);
    if (json_parse(&f.a, buf_str(&text), text.len, &report, &e) ||
        json_get_int(report, "param_count", &reported, &e))
        fail_msg("%s: %s", own->name, e.text);
    assert_int_equal(reported, params);
    assert_int_equal(count_params(report), params);
    buf_clear(&text);
    fixture_clear(&f);
}

static void each_report_has_the_parameters_that_a_check_counts(void **state)
{
    (void)state;
    for (int i = 0; i < OWNS; i++) {
        struct arena a = {0};
        struct model_checked checked;
        struct buf why = {0};
        char path[100];
        snprintf(path, sizeof path, "./tests/unit/programs/%s.model", owns[i].name);
        if (model_check(path, owns[i].sizes, count_sizes(&owns[i]), &a, &checked, &why))
            fail_msg("%s", buf_str(&why));
        assert_true(checked.params > 0);
        check_report(&owns[i], "mesh: {dp: 2, tp: 2}\n", checked.params);
        if (owns[i].layered)
            check_report(&owns[i], "mesh: {pp: 2, tp: 2}\n", checked.params);
        buf_clear(&why);
        arena_clear(&a);
    }
}

// ---- findings ----------------------------------------------------------------------------------

// The settings of a fix, in place of its " and "s. Returns their number.
static int split_fix(char *fix, const char *set[8])
{
    int n = 0;
    for (char *at = fix; at;) {
        char *end = strstr(at, " and ");
        assert_true(n < 8);
        set[n++] = at;
        if (end)
            *end = 0;
        at = end ? end + 5 : NULL;
    }
    return n;
}

// Each way of a fix is taken: the finding is gone, and no error is left but of code `may`.
static void check_fixes(const struct own *own, const char *rest, const struct finding *one,
                        enum finding_code may)
{
    char fixes[1000], *next;
    assert_non_null(one->fix);
    snprintf(fixes, sizeof fixes, "%s", one->fix);
    for (char *fix = fixes; fix; fix = next) {
        struct fixture f;
        const char *set[8];
        next = strstr(fix, " or ");
        if (next) {
            *next = 0;
            next += 4;
        }
        int n = split_fix(fix, set);
        (void)compile_with(&f, job_of(own, rest), set, n);
        for (int i = 0; i < f.found.n; i++) {
            const struct finding *left = &f.found.items[i];
            if (left->code == one->code || (finding_is_error(left->code) && left->code != may))
                fail_msg("%s: -s '%s' leaves %s", own->name, set[0], left->message);
        }
        fixture_clear(&f);
    }
}

// A finding of this code that says this, with fixes that help.
static void check_finding(const struct own *own, const char *rest, enum finding_code code,
                          const char *says, enum finding_code may)
{
    struct fixture f;
    int n = 0;
    assert_int_equal(compile_any(&f, job_of(own, rest)), ERR_INVALID);
    for (int i = 0; i < f.found.n; i++)
        if (f.found.items[i].code == code && strstr(f.found.items[i].message, says)) {
            check_fixes(own, rest, &f.found.items[i], may);
            n++;
        }
    if (!n)
        fail_msg("%s: no %s that says '%s', but %s", own->name, finding_name(code), says, f.e.text);
    fixture_clear(&f);
}

// No size of mlp divides by 5. Without the rule nothing is left for the axis to cut.
static void a_rule_that_does_not_divide_is_reported_with_sizes_that_do(void **state)
{
    (void)state;
    for (int i = 0; i < OWNS; i++) {
        char says[100];
        long long size = owns[i].mlp, below = size - size % 5;
        snprintf(says, sizeof says,
                 "dimension %s of size %lld does not divide by 5 (x): try %lld or %lld",
                 owns[i].dim ? owns[i].dim : "mlp", size, below, below + 5);
        check_finding(&owns[i], "mesh: {dp: 2, x: 5}\nsharding: {rules: {mlp: x}}\n",
                      FINDING_INDIVISIBLE, says, FINDING_UNUSED_AXIS);
    }
}

static void an_axis_that_cuts_nothing_is_reported(void **state)
{
    (void)state;
    for (int i = 0; i < OWNS; i++)
        check_finding(&owns[i], "mesh: {dp: 2, x: 2}\n", FINDING_UNUSED_AXIS,
                      "axis x of the mesh cuts nothing: its 2 devices would all do the same",
                      FINDING_UNUSED_AXIS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_every_text),
        cmocka_unit_test(each_is_drawn_within_the_width),
        cmocka_unit_test(each_report_has_the_parameters_that_a_check_counts),
        cmocka_unit_test(a_rule_that_does_not_divide_is_reported_with_sizes_that_do),
        cmocka_unit_test(an_axis_that_cuts_nothing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
