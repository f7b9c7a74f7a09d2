// SPDX-License-Identifier: Apache-2.0
// Checkpoints forged by somebody who makes every digest again: heads of shards and manifests that
// lie, each alone and both in agreement. A forgery is refused, and the checkpoint before it is taken;
// or what is read of it is what its files hold where its manifest says. `make asan` sees that nothing
// is read out of bounds.
//
// WEFT_SEED=N draws other forgeries, WEFT_ROUNDS=N so many.
#include "common/base/json.h"
#include "tests/support/digest.h"
#include "tests/unit/ckpt_fixture.h"

enum { CASES = 1000, STEP = 10, TRUE_STEP = 5, LENGTH_BYTES = 8 };
#define COUNT(table) (sizeof(table) / sizeof *(table))

struct forger {
    struct fixture f;
    uint64_t seed;
    int dir;                    // of the checkpoint that is forged
    struct buf text;            // its manifest, before
    struct buf data[FX_RANKS];  // what its shards hold behind their heads
    struct arena arena;         // of one forgery
    struct manifest m;          // what it says
    uint64_t head[FX_RANKS];    // the lengths of its heads, before
    uint64_t bytes[FX_RANKS];   // of its files, before
    struct buf shard[FX_RANKS]; // its files
    struct buf forged_head;     // text of the head being made
};

static uint64_t draw(struct forger *f, uint64_t n)
{
    f->seed = f->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (f->seed >> 33) % n;
}

// ---- the checkpoint that is forged ----

static void read_file(int dir, const char *name, struct buf *out)
{
    char part[4096];
    int fd = openat(dir, name, O_RDONLY);
    assert_true(fd >= 0);
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;)
        buf_append(out, part, (size_t)n);
    close(fd);
}

// For every forgery again: the manifest as it was.
static void take_manifest(struct forger *f)
{
    struct err e = {0};
    arena_clear(&f->arena);
    arena_init(&f->arena);
    assert_int_equal(manifest_parse(&f->arena, f->text.data, f->text.len, &f->m, &e), 0);
    for (int i = 0; i < FX_RANKS; i++) {
        f->head[i] = f->m.files[i].head_bytes;
        f->bytes[i] = f->m.files[i].bytes;
    }
}

static void begin(struct forger *f)
{
    char name[64];
    const char *seed = getenv("WEFT_SEED");
    *f = (struct forger){.seed = seed ? strtoull(seed, NULL, 10) : 1};
    print_message("WEFT_SEED=%llu\n", (unsigned long long)f->seed);
    fx_init(&f->f);
    arena_init(&f->arena);
    fx_save(&f->f, 1, TRUE_STEP);
    fx_save(&f->f, 1, STEP);
    store_entry_name(1, STEP, name);
    f->dir = openat(f->f.store.fd, name, O_RDONLY | O_DIRECTORY);
    assert_true(f->dir >= 0);
    read_file(f->dir, "MANIFEST.json", &f->text);
    take_manifest(f);
    for (int i = 0; i < FX_RANKS; i++) {
        struct buf whole = {0};
        read_file(f->dir, f->m.files[i].name, &whole);
        buf_append(&f->data[i], whole.data + f->head[i], whole.len - f->head[i]);
        buf_clear(&whole);
    }
}

static void end(struct forger *f)
{
    for (int i = 0; i < FX_RANKS; i++) {
        buf_clear(&f->data[i]);
        buf_clear(&f->shard[i]);
    }
    buf_clear(&f->text);
    buf_clear(&f->forged_head);
    close(f->dir);
    arena_clear(&f->arena);
    fx_clear(&f->f);
}

// ---- what manifest and heads say alike ----

static int64_t draw_number(struct forger *f, int64_t was)
{
    static const int64_t odd[] = {0,         1,         2,         3,         -1,
                                  -8,        64,        4096,      INT32_MAX, INT64_C(1) << 31,
                                  1LL << 53, 1LL << 61, 1LL << 62, INT64_MAX, INT64_MIN};
    switch (draw(f, 4)) {
    case 0:
        return odd[draw(f, COUNT(odd))];
    case 1:
        return (int64_t)((uint64_t)was + draw(f, 17) - 8);
    case 2:
        return (int64_t)((uint64_t)was * 2);
    default:
        return was / 2;
    }
}

static const char *draw_name(struct forger *f)
{
    static const char *const odd[] = {"",
                                      "w1",
                                      "b1",
                                      "scale",
                                      "__metadata__",
                                      "\033[2J",
                                      "\xe2\x80\xae",
                                      "a\nb",
                                      "../../evil",
                                      "/etc/passwd",
                                      "OWNER",
                                      "COMMIT",
                                      ".",
                                      "shard-00003-of-00004.safetensors",
                                      "shard-99999-of-00001.safetensors"};
    return odd[draw(f, COUNT(odd))];
}

static void forge_tensor(struct forger *f, struct manifest_tensor *t)
{
    uint64_t d = draw(f, MAX_DIMS);
    switch (draw(f, 5)) {
    case 0:
        t->shape.dim[d] = draw_number(f, t->shape.dim[d]);
        break;
    case 1:
        t->shape.n = (int)draw(f, MAX_DIMS + 1);
        break;
    case 2:
        t->dtype = (enum dtype)(DT_NONE + 1 + draw(f, DT_COUNT - DT_NONE - 1));
        break;
    case 3:
        t->name = draw_name(f);
        break;
    default:
        t->nslices -= t->nslices > 0;
    }
}

static void swap_places(struct manifest_slice *a, struct manifest_slice *b)
{
    struct manifest_slice was = *a;
    a->file = b->file, a->at = b->at, a->bytes = b->bytes;
    b->file = was.file, b->at = was.at, b->bytes = was.bytes;
}

static void forge_slice(struct forger *f, struct manifest_slice *s, struct manifest_slice *other)
{
    uint64_t d = draw(f, MAX_DIMS);
    switch (draw(f, 7)) {
    case 0:
        s->at = (uint64_t)draw_number(f, (int64_t)s->at);
        break;
    case 1:
        s->bytes = (uint64_t)draw_number(f, (int64_t)s->bytes);
        break;
    case 2:
        s->box.start[d] = draw_number(f, s->box.start[d]);
        break;
    case 3:
        s->box.shape.dim[d] = draw_number(f, s->box.shape.dim[d]);
        break;
    case 4:
        s->file = (int)draw(f, FX_RANKS);
        break;
    case 5:
        s->box.shape.n = (int)draw(f, MAX_DIMS + 1);
        break;
    default:
        swap_places(s, other);
    }
}

// The tensor and all its slices, so that only the model knows better.
static void forge_alike(struct forger *f, struct manifest_tensor *t)
{
    uint64_t d = draw(f, 3), other = draw(f, 3);
    int64_t was = t->shape.dim[d];
    t->shape.dim[d] = t->shape.dim[other];
    t->shape.dim[other] = was;
    for (int i = 0; i < t->nslices; i++) {
        struct box *b = &t->slices[i].box;
        int64_t start = b->start[d], dim = b->shape.dim[d];
        b->start[d] = b->start[other], b->shape.dim[d] = b->shape.dim[other];
        b->start[other] = start, b->shape.dim[other] = dim;
    }
}

static void forge_whole(struct forger *f)
{
    struct manifest *m = &f->m;
    struct manifest_file *file = &m->files[draw(f, FX_RANKS)];
    switch (draw(f, 8)) {
    case 0:
        file->bytes = (uint64_t)draw_number(f, (int64_t)file->bytes);
        break;
    case 1:
        file->name = draw_name(f);
        break;
    case 2:
        m->nfiles = (int)draw(f, FX_RANKS);
        break;
    case 3:
        m->ntensors = (int)draw(f, (uint64_t)m->ntensors + 1);
        break;
    case 4:
        m->mesh[0].size = draw_number(f, m->mesh[0].size);
        break;
    case 5:
        m->samples = draw_number(f, m->samples);
        break;
    case 6:
        m->attempt = draw_number(f, m->attempt);
        break;
    default:
        m->step = draw_number(f, m->step);
    }
}

static void forge_struct(struct forger *f)
{
    struct manifest_tensor *t = &f->m.tensors[draw(f, (uint64_t)f->m.ntensors + !f->m.ntensors)];
    struct manifest_tensor *u = &f->m.tensors[draw(f, (uint64_t)f->m.ntensors + !f->m.ntensors)];
    switch (draw(f, 5)) {
    case 0:
        forge_tensor(f, t);
        break;
    case 1:
        forge_alike(f, t);
        break;
    case 2:
        forge_whole(f);
        break;
    default:
        if (t->nslices && u->nslices)
            forge_slice(f, &t->slices[draw(f, (uint64_t)t->nslices)],
                        &u->slices[draw(f, (uint64_t)u->nslices)]);
    }
}

// ---- texts ----

// Puts something else in the place of a key or value that is drawn.
static void forge_text(struct forger *f, struct buf *text)
{
    static const char *const odd[] = {"-1",
                                      "0",
                                      "1",
                                      "1, 1",
                                      "NaN",
                                      "1e999",
                                      "1e3",
                                      "0.5",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "18446744073709551615",
                                      "-9223372036854775808",
                                      "null",
                                      "true",
                                      "[]",
                                      "{}",
                                      "[[1]]",
                                      "[1,1,1,1,1,1,1,1,1]",
                                      "[0,4611686018427387904,4611686018427387904]",
                                      "\"\"",
                                      "\"w1\"",
                                      "\"\\u001b[2J\"",
                                      "\"\\u202e\"",
                                      "\"a\\nb\"",
                                      "\"\\u0000\"",
                                      "\"../../evil\"",
                                      "\"F64\"",
                                      "\"U8\"",
                                      "\"__metadata__\"",
                                      "\"dtype\"",
                                      "\"shape\"",
                                      "\"x\": 1, \"y\""};
    struct token {
        size_t at, len;
    } found[2000];
    struct buf out = {0};
    size_t n = 0;
    for (size_t i = 0; i < text->len && n < COUNT(found);) {
        size_t len = text->data[i] == '"' ? strcspn(text->data + i + 1, "\"") + 2
                                          : strspn(text->data + i, "-0123456789");
        if (len)
            found[n++] = (struct token){i, len};
        i += len + !len;
    }
    if (!n)
        return;
    struct token t = found[draw(f, n)];
    buf_append(&out, text->data, t.at);
    buf_puts(&out, odd[draw(f, COUNT(odd))]);
    buf_append(&out, text->data + t.at + t.len, text->len - t.at - t.len);
    buf_clear(text);
    *text = out;
}

// A head that says of each slice what the manifest does.
static void print_head(const struct forger *f, int file, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    json_object(&w, NULL);
    for (int i = 0; i < f->m.ntensors; i++)
        for (int k = 0; k < f->m.tensors[i].nslices; k++) {
            const struct manifest_tensor *t = &f->m.tensors[i];
            const struct manifest_slice *s = &t->slices[k];
            if (s->file != file)
                continue;
            json_object(&w, t->name);
            json_str(&w, "dtype", ckpt_dtype_name(t->dtype));
            json_array(&w, "shape");
            for (int d = 0; d < s->box.shape.n; d++)
                json_int(&w, NULL, s->box.shape.dim[d]);
            json_end(&w);
            json_array(&w, "data_offsets");
            json_uint(&w, NULL, s->at - f->head[file]);
            json_uint(&w, NULL, s->at - f->head[file] + s->bytes);
            json_end(&w);
            json_end(&w);
        }
    json_end(&w);
    json_out_clear(&w);
}

// ---- sealing ----

// The head before `len` bytes of data, the file's or fewer or more, and what the manifest says of
// both.
static void seal_shard(struct forger *f, int file, uint64_t claimed, size_t len)
{
    struct buf *head = &f->forged_head, *to = &f->shard[file];
    struct manifest_file *m = &f->m.files[file];
    buf_clear(to);
    for (int i = 0; i < LENGTH_BYTES; i++)
        buf_putc(to, (char)(claimed >> (8 * i)));
    buf_append(to, head->data, head->len);
    m->head_bytes = to->len;
    m->head_digest = digest_bytes(to->data, to->len);
    buf_append(to, f->data[file].data, len < f->data[file].len ? len : f->data[file].len);
    while (to->len < m->head_bytes + len)
        buf_putc(to, 'x');
    m->bytes += to->len - f->bytes[file]; // as far off as it was forged to be
    for (int i = 0; i < f->m.ntensors; i++)
        for (int k = 0; k < f->m.tensors[i].nslices; k++) {
            struct manifest_slice *s = &f->m.tensors[i].slices[k];
            if (s->file != file)
                continue;
            s->at += m->head_bytes - f->head[file];
            if (s->at <= to->len && s->bytes <= to->len - s->at)
                s->digest = digest_bytes(to->data + s->at, s->bytes);
        }
}

static void seal_manifest(struct forger *f, const struct buf *text)
{
    char commit[COMMIT_BYTES + 1];
    manifest_seal(buf_str(text), text->len, commit);
    fx_put(f->dir, "MANIFEST.json", buf_str(text), text->len);
    fx_put(f->dir, "COMMIT", commit, COMMIT_BYTES);
}

// Nothing is written or removed outside of the checkpoint, whatever a file is called.
static bool is_plain(const char *name)
{
    return *name && *name != '.' && !strchr(name, '/');
}

static void write_shards(struct forger *f)
{
    for (int i = 0; i < FX_RANKS; i++)
        if (is_plain(f->m.files[i].name))
            fx_put(f->dir, f->m.files[i].name, f->shard[i].data, f->shard[i].len);
}

static void remove_shards(struct forger *f)
{
    for (int i = 0; i < FX_RANKS; i++)
        if (is_plain(f->m.files[i].name))
            unlinkat(f->dir, f->m.files[i].name, 0);
}

// One forgery, written. The manifest and the heads first agree; then a text of either may be changed.
static void forge(struct forger *f)
{
    struct buf text = {0};
    take_manifest(f);
    for (uint64_t n = draw(f, 3); n; n--)
        forge_struct(f);
    uint64_t edited = draw(f, 2 * FX_RANKS), lied = draw(f, 4 * FX_RANKS);
    uint64_t resized = draw(f, 4 * FX_RANKS);
    for (int i = 0; i < FX_RANKS; i++) {
        static const uint64_t lengths[] = {0, 1, 63, 1 << 20, 1 << 27, INT64_MAX, UINT64_MAX};
        size_t len = f->data[i].len;
        buf_clear(&f->forged_head);
        print_head(f, i, &f->forged_head);
        if (edited == (uint64_t)i)
            forge_text(f, &f->forged_head);
        while ((LENGTH_BYTES + f->forged_head.len) % SHARD_ALIGN)
            buf_putc(&f->forged_head, ' ');
        seal_shard(f, i,
                   lied == (uint64_t)i ? lengths[draw(f, COUNT(lengths))] : f->forged_head.len,
                   resized == (uint64_t)i ? draw(f, 2 * len) : len);
    }
    manifest_write(&f->m, &text);
    if (draw(f, 3) == 0)
        forge_text(f, &text);
    write_shards(f);
    seal_manifest(f, &text);
    buf_clear(&text);
}

// ---- what becomes of it ----

static const struct buf *find_shard(const struct forger *f, const char *name)
{
    for (int i = FX_RANKS - 1; i >= 0; i--) // of two of one name the last was written
        if (!strcmp(f->m.files[i].name, name))
            return &f->shard[i];
    return NULL;
}

// Where element `i` of a slice lies in its tensor.
static int64_t place_element(const struct manifest_slice *s, const struct shape *whole, int64_t i)
{
    int64_t at = 0, stride = 1;
    for (int d = whole->n - 1; d >= 0; d--) {
        at += (s->box.start[d] + i % s->box.shape.dim[d]) * stride;
        i /= s->box.shape.dim[d];
        stride *= whole->dim[d];
    }
    return at;
}

// The tensor element by element, out of the files' bytes.
static void gather(const struct forger *f, const struct load *l, const struct manifest_tensor *t,
                   char *to)
{
    size_t size = dtype_size(t->dtype);
    for (int k = 0; k < t->nslices; k++) {
        const struct manifest_slice *s = &t->slices[k];
        const struct buf *shard = find_shard(f, l->manifest.files[s->file].name);
        assert_non_null(shard);
        assert_true(s->at + s->bytes <= shard->len);
        for (int64_t i = 0; i < (int64_t)(s->bytes / size); i++)
            memcpy(to + (size_t)place_element(s, &t->shape, i) * size,
                   shard->data + s->at + (size_t)i * size, size);
    }
}

// Every tensor of the model is refused or is what lies in the files.
static void check_reads(const struct forger *f, struct load *l)
{
    for (int i = 0; i < FX_PARTS; i++) {
        const struct deal_part *p = &fx_parts[i];
        struct box whole = {.shape = p->global};
        uint64_t bytes = box_bytes(&whole, p->dtype);
        struct err e = {0};
        char *got = malloc(bytes), *want = malloc(bytes);
        if (load_read(l, p->name, p->dtype, &p->global, &whole, got, &e)) {
            assert_true(*e.text && (e.code == ERR_DATA || e.code == ERR_CORRUPT));
        } else {
            gather(f, l, manifest_find(&l->manifest, p->name), want);
            assert_memory_equal(got, want, bytes);
        }
        free(got);
        free(want);
    }
}

static void note(void *arg, struct store_entry which, const struct err *e)
{
    assert_int_equal(which.step, STEP);
    *(struct err *)arg = *e;
}

// Whether it is believed. Otherwise the one before it is, whole.
static bool try_forgery(struct forger *f)
{
    struct load l = {0};
    struct err why = {0}, e = {0};
    if (!load_open(&l, &f->f.store, 1, STEP, &e)) {
        check_reads(f, &l);
        load_close(&l);
    }
    assert_int_equal(load_open_newest_good(&l, &f->f.store, note, &why, &e), 0);
    bool believed = l.manifest.step == STEP;
    if (believed) {
        check_reads(f, &l);
    } else { // ERR_IO would say that the disk is broken
        if (why.code != ERR_DATA && why.code != ERR_CORRUPT && why.code != ERR_UNSUPPORTED)
            fail_msg("code %d: %s", why.code, why.text);
        assert_non_null(strstr(why.text, "step-00000010.a1"));
        assert_int_equal(fx_read_all(&l, TRUE_STEP, &e), 0);
    }
    load_close(&l);
    return believed;
}

static void no_forgery_is_read_but_as_its_manifest_says(void **state)
{
    const char *rounds = getenv("WEFT_ROUNDS");
    int cases = rounds ? atoi(rounds) : CASES, believed = 0;
    struct forger f;
    (void)state;
    begin(&f);
    for (int i = 0; i < cases; i++) {
        remove_shards(&f);
        forge(&f);
        believed += try_forgery(&f);
    }
    print_message("%d forgeries, %d believed\n", cases, believed);
    assert_true(believed > 0 && believed < cases);
    end(&f);
}

// ---- heads that lie where the manifest does not ----

static void replace(struct buf *text, const char *from, const char *to)
{
    struct buf out = {0};
    const char *at = strstr(buf_str(text), from);
    if (!at)
        fail_msg("'%s' is not in %s", from, buf_str(text));
    buf_append(&out, text->data, (size_t)(at - text->data));
    buf_puts(&out, to);
    buf_puts(&out, at + strlen(from));
    buf_clear(text);
    *text = out;
}

static void a_head_that_lies_is_refused_whoever_sealed_it(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } lies[] = {
        {"{\"w1\"", "{\"w9\"", "disagree"},
        {"{\"w1\"", "{\"\\u001b[2J\"", "disagree"},
        {"{\"w1\"", "{\"b1\"", "there twice"},
        {"{\"w1\"", "{\"more\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"w1\"",
         "the manifest"},
        {"{\"w1\"", "{\"__metadata__\":{\"a\":1},\"w1\"", "not a string"},
        {"\"F32\"", "\"F64\"", "unknown dtype"},
        {"\"F32\"", "\"U8\"", "do not make"},
        {"\"F32\"", "32", "dtype"},
        {"[24,64]", "[64,24]", "disagree"},
        {"[24,64]", "[24,64,1]", "disagree"},
        {"[24,64]", "[24]", "do not make"},
        {"[24,64]", "[NaN,64]", "JSON"},
        {"[24,64]", "[-24,-64]", "whole number"},
        {"[24,64]", "[24.0,64]", "whole number"},
        {"[24,64]", "[\"24\",64]", "whole number"},
        {"[24,64]", "[4611686018427387928,4]", "do not make"},
        {"[24,64]", "[18446744073709551616,64]", "whole number"},
        {"[24,64]", "[24,64,1,1,1,1,1,1,1]", "8 dimensions"},
        {"[0,6144]", "[4,6148]", "leaving a hole"},
        {"[0,6144]", "[6144,0]", "outside"},
        {"[0,6144]", "[-6144,0]", "outside"},
        {"[0,6144]", "[0,9223372036854775807]", "outside"},
        {"[0,6144]", "[0,18446744073709551615]", "whole numbers"},
        {"[0,6144]", "[0]", "whole numbers"},
        {"[0,6144]", "[{},6144]", "whole numbers"},
        {"[6144,", "[6140,", "do not make"},
    };
    struct forger f;
    struct load l;
    (void)state;
    begin(&f);
    for (size_t i = 0; i < COUNT(lies); i++) {
        struct buf text = {0};
        struct err e = {0};
        take_manifest(&f);
        for (int r = 0; r < FX_RANKS; r++) {
            buf_clear(&f.forged_head);
            print_head(&f, r, &f.forged_head);
            if (r == 0)
                replace(&f.forged_head, lies[i].from, lies[i].to);
            seal_shard(&f, r, f.forged_head.len, f.data[r].len);
        }
        write_shards(&f);
        manifest_write(&f.m, &text);
        seal_manifest(&f, &text);
        buf_clear(&text);
        assert_int_equal(load_open(&l, &f.f.store, 1, STEP, &e), 0);
        if (load_verify(&l, NULL, NULL, &e) != ERR_DATA || !strstr(e.text, lies[i].says) ||
            !strstr(e.text, "shard-00000-of-00004.safetensors"))
            fail_msg("%s for %s: %d, %s", lies[i].to, lies[i].from, e.code, e.text);
        load_close(&l);
        assert_false(try_forgery(&f));
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_forgery_is_read_but_as_its_manifest_says),
        cmocka_unit_test(a_head_that_lies_is_refused_whoever_sealed_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
