// SPDX-License-Identifier: Apache-2.0
// A tokenizer for programs that compare or measure it: tokenize TOKENIZER [--time].
//
// Standard input is a run of texts, each its length (u32, little-endian) and its bytes; standard output the
// same run of results: how many ids (u32), the ids (i32), how long their decoding is (u32), its bytes.
// With --time only the processor seconds that encoding all of them took, and how many ids there are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/tokenizer/tokenizer.h"

struct session {
    struct tokenizer *t;
    struct tokenizer_work *w;
    struct token_ids ids;
    struct buf text, decoded;
    double seconds;
    size_t total;
};

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void put_run(const void *data, uint32_t n, size_t size)
{
    fwrite(&n, sizeof n, 1, stdout);
    fwrite(data, size, n, stdout);
}

static int take_text(struct session *s, bool timed, struct err *e)
{
    double before = processor_seconds();
    s->ids.n = 0;
    int rc = tokenizer_encode(s->t, s->w, buf_str(&s->text), s->text.len, false, &s->ids, e);
    s->seconds += processor_seconds() - before;
    s->total += s->ids.n;
    if (rc || timed)
        return rc;
    buf_reset(&s->decoded);
    tokenizer_decode(s->t, s->ids.data, s->ids.n, false, &s->decoded);
    put_run(s->ids.data, (uint32_t)s->ids.n, sizeof *s->ids.data);
    put_run(buf_str(&s->decoded), (uint32_t)s->decoded.len, 1);
    fflush(stdout); // who asked waits for it
    return 0;
}

static int take_all(struct session *s, bool timed, struct err *e)
{
    uint32_t n;
    int rc = 0;
    while (!rc && fread(&n, sizeof n, 1, stdin) == 1) {
        buf_reset(&s->text);
        buf_reserve(&s->text, n);
        s->text.len = fread(s->text.data, 1, n, stdin);
        rc = s->text.len == n ? take_text(s, timed, e) : err_set(e, ERR_DATA, "a text is cut");
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct session s = {0};
    struct err e = {0};
    bool timed = argc == 3 && strcmp(argv[2], "--time") == 0;
    if (argc < 2 || tokenizer_open(&s.t, argv[1], &e)) {
        fprintf(stderr, "tokenize: %s\n", argc < 2 ? "TOKENIZER [--time]" : e.text);
        return 2;
    }
    s.w = tokenizer_work_new(s.t);
    int rc = take_all(&s, timed, &e);
    if (rc)
        fprintf(stderr, "tokenize: %s\n", e.text);
    else if (timed)
        printf("%.6f %zu\n", s.seconds, s.total);
    tokenizer_work_free(s.w);
    tokenizer_close(s.t);
    token_ids_clear(&s.ids);
    buf_clear(&s.text);
    buf_clear(&s.decoded);
    return rc ? 1 : 0;
}
