// SPDX-License-Identifier: Apache-2.0
// A line of JSONL. See jsonl.h.
#include "common/data/prepare/jsonl.h"

#include "common/base/buf.h"
#include "common/base/json.h"

static int refuse_missing(const struct json *object, const char *field, struct err *e)
{
    enum { NAMED = 8 };
    struct buf has = {0};
    int n = 0;
    for (const struct json *v = object->first; v && n < NAMED; v = v->next, n++)
        buf_printf(&has, "%s'%.40s'", n ? ", " : "", v->key);
    int rc = err_set(e, ERR_DATA, "the object has no field '%s': it has %s%s", field,
                     n ? buf_str(&has) : "none", object->count > NAMED ? ", …" : "");
    buf_clear(&has);
    return rc;
}

int jsonl_text(struct arena *a, const char *line, size_t len, const char *field, const char **text,
               size_t *text_len, struct err *e)
{
    struct json *object;
    int rc = json_parse_zeros(a, line, len, &object, e);
    if (rc)
        return rc;
    if (object->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "the line is no JSON object ({\"%s\": \"…\"})", field);
    const struct json *v = json_get(object, field);
    if (!v)
        return refuse_missing(object, field, e);
    if (v->type != JSON_STRING)
        return err_set(e, ERR_DATA, "field '%s' is no string", field);
    *text = v->string;
    *text_len = v->length;
    return 0;
}
