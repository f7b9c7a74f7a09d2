// SPDX-License-Identifier: Apache-2.0
// Messages as JSON; see message_json.h.
#include "coordinator/cli/message_json.h"

#include <math.h>
#include <string.h>

// Whether the member means something: some do only while another of their message is not 0.
static bool is_known(const ProtobufCMessage *m, const char *member)
{
    static const struct {
        const char *member, *needs;
    } rows[] = {
        {"loss", "reported"},           {"tokens_per_s", "reported"},
        {"samples_per_s", "reported"},  {"eval_loss", "evaluated"},
        {"eval_accuracy", "evaluated"}, {"unsaved_since_ms", "unsaved"},
        {"unsaved_for_ms", "unsaved"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].member, member) != 0)
            continue;
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field_by_name(m->descriptor, rows[i].needs);
        return !f || *(const int *)(const void *)((const char *)m + f->offset); // bool or int32
    }
    return true;
}

static void print_double(struct json_out *w, const char *key, double value)
{
    // Only models of tokens have a rate of tokens, and only classifiers an accuracy.
    bool none = isnan(value) ? key && !strcmp(key, "eval_accuracy")
                             : value <= 0 && key && !strcmp(key, "tokens_per_s");
    json_known_double(w, key, !none, value);
}

static void print_value(struct json_out *w, const char *key, const ProtobufCFieldDescriptor *f,
                        const void *at)
{
    const ProtobufCMessage *inner;
    const ProtobufCEnumValue *word;
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
        json_count(w, key, *(const int32_t *)at);
        break;
    case PROTOBUF_C_TYPE_INT64:
        json_count(w, key, *(const int64_t *)at);
        break;
    case PROTOBUF_C_TYPE_SINT64:
        json_int(w, key, *(const int64_t *)at);
        break;
    case PROTOBUF_C_TYPE_UINT64:
        json_uint(w, key, *(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        print_double(w, key, *(const double *)at);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        json_bool(w, key, *(const protobuf_c_boolean *)at);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        word = protobuf_c_enum_descriptor_get_value(f->descriptor, *(const int *)at);
        json_str(w, key, word && word->value ? word->name : NULL);
        break;
    case PROTOBUF_C_TYPE_STRING:
        json_text(w, key, *(const char *const *)at);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        inner = *(const ProtobufCMessage *const *)at;
        if (!inner) {
            json_null(w, key);
            break;
        }
        json_object(w, key);
        json_members(w, inner);
        json_end(w);
        break;
    default:
        PRE(!"a type that no message for people has");
    }
}

void json_members(struct json_out *w, const ProtobufCMessage *m)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const void *at = (const char *)m + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) { // of texts or messages, which are pointers
            size_t n = *(const size_t *)(const void *)((const char *)m + f->quantifier_offset);
            json_array(w, f->name);
            for (size_t k = 0; k < n; k++)
                print_value(w, NULL, f, *(const void *const *const *)at + k);
            json_end(w);
        } else if (!is_known(m, f->name)) {
            json_null(w, f->name);
        } else if (m->descriptor == &weft__v1__checkpoint__descriptor &&
                   !strcmp(f->name, "state")) {
            json_str(w, f->name, word_checkpoint(*(const int32_t *)at));
        } else {
            print_value(w, f->name, f, at);
        }
    }
}

void json_message(struct buf *out, bool pretty, const ProtobufCMessage *m)
{
    struct json_out w;
    json_print_start(&w, out, pretty);
    json_members(&w, m);
    json_print_end(&w);
}
