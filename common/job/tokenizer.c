// SPDX-License-Identifier: Apache-2.0
// Text and token ids. See tokenizer.h.
#include "common/job/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/utf8.h"
#include "common/job/text.h"

// The byte that an escape stands for, and its length behind the backslash; −1: it is none.
static int decode_escape(const char *s, int *len)
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

static int encode_bytes(const char *text, int32_t *ids, int64_t *n, struct err *e)
{
    for (const char *s = text; *s; s++) {
        int byte = (unsigned char)*s, len = 0;
        if (*s == '\\')
            byte = decode_escape(s + 1, &len);
        if (byte < 0)
            return err_set(
                e, ERR_INVALID,
                "'%.4s' is no escape: \\n, \\t, \\\\ and \\xNN are (a backslash is \\\\)", s);
        s += len;
        ids[(*n)++] = byte;
    }
    return 0;
}

static int encode_ids(const char *text, int32_t *ids, int64_t *n, struct err *e)
{
    for (const char *s = text; *s;) {
        char *end;
        if (isspace((unsigned char)*s)) {
            s++;
            continue;
        }
        long id = isdigit((unsigned char)*s) ? strtol(s, &end, 10) : -1;
        if (id < 0 || (*end && !isspace((unsigned char)*end)))
            return err_set(e, ERR_INVALID,
                           "'%.20s' is no token id: data.tokenizer is ids, so a prompt is numbers "
                           "with spaces between them",
                           s);
        ids[(*n)++] = id > INT32_MAX ? INT32_MAX : (int32_t)id;
        s = end;
    }
    return 0;
}

int tokenizer_encode(enum job_tokenizer t, const char *text, int64_t vocab, struct arena *a,
                     int32_t **ids, int64_t *n, struct err *e)
{
    *ids = arena_array(a, int32_t, strlen(text) + 1);
    *n = 0;
    int rc =
        t == JOB_TOKENIZER_BYTES ? encode_bytes(text, *ids, n, e) : encode_ids(text, *ids, n, e);
    for (int64_t i = 0; i < *n && !rc; i++)
        if ((*ids)[i] >= vocab)
            rc = err_set(e, ERR_INVALID, "token %d is not in 0 … %lld (model.vocab: %lld)",
                         (*ids)[i], (long long)vocab - 1, (long long)vocab);
    if (!rc && *n == 0)
        rc = err_set(e, ERR_INVALID, "it holds no token: one is needed to begin with");
    return rc;
}

static void decode_bytes(const int32_t *ids, int64_t n, struct buf *text)
{
    for (int64_t i = 0; i < n;) {
        char s[4] = {0};
        size_t have = 0;
        while (have < sizeof s && i + (int64_t)have < n && ids[i + (int64_t)have] < 256) {
            s[have] = (char)ids[i + (int64_t)have];
            have++;
        }
        size_t len = utf8_length(s, have);
        bool shown = len && (*s == '\n' || *s == '\t' || !text_is_control(utf8_decode(s, len)));
        if (shown)
            buf_append(text, s, len);
        else if (have)
            buf_printf(text, "\\x%02x", (unsigned char)s[0]);
        else // a vocabulary of more than the bytes
            buf_printf(text, "<%d>", ids[i]);
        i += shown ? (int64_t)len : 1;
    }
}

void tokenizer_decode(enum job_tokenizer t, const int32_t *ids, int64_t n, struct buf *text)
{
    if (t == JOB_TOKENIZER_BYTES) {
        decode_bytes(ids, n, text);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        buf_printf(text, "%s%d", i ? " " : "", ids[i]);
}
