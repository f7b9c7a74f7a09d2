// SPDX-License-Identifier: Apache-2.0
// Tokenizers and prompts of jobs. See prompt.h.
#include "common/job/prompt.h"

#include "common/base/hash.h"

const char *job_tokenizer(const struct job *job, struct arena *a)
{
    const char *name = job->data.tokenizer;
    return tokenizer_is_file(name) ? job_path(job, a, name) : name;
}

// The byte that an escape stands for, and its length behind the backslash; −1: it is none.
static int decode_escape(const char *s, size_t *len)
{
    static const char plain[][2] = {{'n', '\n'}, {'t', '\t'}, {'\\', '\\'}};
    *len = 1;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (s[0] == plain[i][0])
            return plain[i][1];
    *len = 3;
    if (s[0] != 'x' || hex_digit(s[1]) < 0 || hex_digit(s[2]) < 0)
        return -1;
    return hex_digit(s[1]) * 16 + hex_digit(s[2]);
}

static int decode_escapes(const char *prompt, struct buf *text, struct err *e)
{
    for (const char *s = prompt; *s; s++) {
        size_t len = 0;
        int byte = *s == '\\' ? decode_escape(s + 1, &len) : (unsigned char)*s;
        if (byte < 0)
            return err_set(
                e, ERR_INVALID,
                "'%.4s' is no escape: \\n, \\t, \\\\ and \\xNN are (a backslash is \\\\)", s);
        s += len;
        buf_putc(text, (char)byte);
    }
    return 0;
}

int prompt_encode(const char *prompt, const struct tokenizer *t, int64_t vocab,
                  struct token_ids *ids, struct err *e)
{
    struct buf text = {0};
    struct tokenizer_work *w = tokenizer_work_new(t);
    size_t before = ids->n;
    int rc = decode_escapes(prompt, &text, e);
    if (!rc)
        rc = tokenizer_encode(t, w, buf_str(&text), text.len, true, ids, e);
    for (size_t i = before; i < ids->n && !rc; i++)
        if (ids->data[i] >= vocab)
            rc = err_set(e, ERR_INVALID, "token %d is not in 0 … %lld (model.vocab: %lld)",
                         ids->data[i], (long long)vocab - 1, (long long)vocab);
    if (!rc && ids->n == before)
        rc = err_set(e, ERR_INVALID, "it holds no token: one is needed to begin with");
    tokenizer_work_free(w);
    buf_clear(&text);
    return rc;
}
