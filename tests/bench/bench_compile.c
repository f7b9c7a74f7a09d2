// SPDX-License-Identifier: Apache-2.0
// How long the compiler takes, and the memory it needs: a plan as `weft plan` makes it (parse,
// compile, verify, report), the compile that every rank does at its start, and what a program
// alone takes: its text read and its graph built.
//
//   bench_compile [RUNS]
//
// Each case runs in a process of its own, so that its peak of memory is its own; the first run
// (page faults, cold caches) counts like the others. The CPU time is told beside the time that
// passed, since a machine that does other work adds to the latter alone.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/explain/plan_report.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

enum { RUNS_MAX = 1000 };

enum work {
    BUILD,   // the program read and its training graph built, nothing more
    COMPILE, // what a rank does
    PLAN,    // and the report
};

static const struct {
    const char *what, *text;
    enum work work;
} cases[] = {
    {"read and build: llama 405B, 126 layers",
     "name: b\nmodel: {program: llama, size: 405b}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 8}\ntrain: {steps: 1}\n",
     BUILD},
    {"read and build: the same in bf16",
     "name: b\nmodel: {program: llama, size: 405b}\nprecision: {compute: bf16}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 8}\ntrain: {steps: 1}\n",
     BUILD},
    {"plan: llama 405B, 126 layers, 4,096 devices {dp: 8, fsdp: 64, tp: 8}",
     "name: b\nmodel: {program: llama, size: 405b}\nmesh: {dp: 8, fsdp: 64, tp: 8}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 4096}\ntrain: {steps: 1}\n",
     PLAN},
    {"plan: the same with 8 microbatches",
     "name: b\nmodel: {program: llama, size: 405b}\nmesh: {dp: 8, fsdp: 64, tp: 8}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 4096}\n"
     "train: {steps: 1, microbatches: 8}\n",
     PLAN},
    {"plan: 1,024 layers, {dp: 4, pp: 64, tp: 16}, 29 microbatches",
     "name: b\nmodel: {program: gpt2, layers: 1024, embed: 256, heads: 16, seq: 128, vocab: 256}\n"
     "mesh: {dp: 4, pp: 64, tp: 16}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 464}\n"
     "train: {steps: 1, microbatches: 29}\n",
     PLAN},
    {"compile: gpt2 124M, {dp: 2}",
     "name: b\nmodel: {program: gpt2}\nmesh: {dp: 2}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 8}\ntrain: {steps: 1}\n",
     COMPILE},
    {"compile: gpt2 124M, {dp: 2, fsdp: 2, tp: 2}, 4 microbatches",
     "name: b\nmodel: {program: gpt2}\nmesh: {dp: 2, fsdp: 2, tp: 2}\n"
     "data: {format: tokens, train: {tokens: t}, batch: 64}\n"
     "train: {steps: 1, microbatches: 4}\n",
     COMPILE},
};
enum { CASES = sizeof cases / sizeof *cases };

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_compile: %s: %s\n", what, why);
    exit(1);
}

struct times { // milliseconds
    double passed, cpu;
};

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void build_alone(const struct job *job, struct arena *a)
{
    struct graph g;
    struct err e = {0};
    graph_init(&g, a, NULL, &e);
    g.compute = job->precision.compute == JOB_BF16 ? DT_BF16 : DT_F32;
    if (plan_build_job(&g, job, PROGRAM_TRAIN, job->data.batch, job->data.batch))
        die("build", e.text);
}

static struct times run(int at)
{
    struct arena a = {0};
    struct job job;
    struct job_errors errs = {0};
    struct compiled c;
    struct findings found;
    struct report r;
    struct buf out = {0};
    struct err e = {0};
    int64_t start = clock_mono_ns();
    double cpu = cpu_ms();
    const char *text = cases[at].text;
    if (job_parse(&a, &weft_schema, "bench", NULL, text, strlen(text), NULL, 0, &job, &errs))
        die(cases[at].what, errs.items[0].message);
    if (cases[at].work == BUILD)
        build_alone(&job, &a);
    else if (plan_explain(&job, &(struct compile_options){0}, &a, &c, &found, NULL, &e))
        die(cases[at].what, e.text);
    if (cases[at].work == PLAN) {
        report_make(&r, &job, &c, &found, device_model_find("cpu"), &a);
        report_text(&r, true, 100, &out);
    }
    struct times ms = {(double)(clock_mono_ns() - start) / 1e6, cpu_ms() - cpu};
    buf_clear(&out);
    arena_clear(&a);
    return ms;
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void bench(int at, int runs)
{
    double ms[RUNS_MAX], cpu[RUNS_MAX];
    struct rusage used;
    for (int i = 0; i < runs; i++) {
        struct times t = run(at);
        ms[i] = t.passed;
        cpu[i] = t.cpu;
    }
    qsort(ms, (size_t)runs, sizeof *ms, ascending);
    qsort(cpu, (size_t)runs, sizeof *cpu, ascending);
    getrusage(RUSAGE_SELF, &used);
    printf("%-70s median %7.1f ms (least %7.1f), CPU %7.1f ms (least %7.1f); peak %4ld MB\n",
           cases[at].what, ms[runs / 2], ms[0], cpu[runs / 2], cpu[0], used.ru_maxrss / 1024);
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 9;
    if (runs < 1 || runs > RUNS_MAX)
        die("RUNS", "1 to 1000");
    for (int i = 0; i < CASES; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0)
            die("fork", "cannot");
        if (child == 0) {
            bench(i, runs);
            return 0;
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            return 1;
    }
    return 0;
}
