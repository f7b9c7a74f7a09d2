// SPDX-License-Identifier: Apache-2.0
// The feed: each rank gets its own samples of every step, in the order the program's buffers want.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/data/sampler.h"
#include "tests/unit/unit.h"
#include "worker/rank/train/feed.h"

enum { SAMPLES = 40, FEATURES = 3, BATCH = 12 };

static char dir[] = "/tmp/weft-feed-XXXXXX";

static void path_of(const char *name, char out[200])
{
    snprintf(out, 200, "%s/%s", dir, name);
}

static void write_file(const char *name, const void *data, size_t len)
{
    char path[200];
    path_of(name, path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

static int setup(void **state)
{
    (void)state;
    unsigned char images[16 + SAMPLES * FEATURES] = {0, 0, 8, 3, 0, 0, 0, SAMPLES,
                                                     0, 0, 0, 1, 0, 0, 0, FEATURES};
    unsigned char labels[8 + SAMPLES] = {0, 0, 8, 1, 0, 0, 0, SAMPLES};
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < SAMPLES; i++) {
        labels[8 + i] = (unsigned char)(i % 10);
        for (int k = 0; k < FEATURES; k++)
            images[16 + i * FEATURES + k] = (unsigned char)(i * FEATURES + k);
    }
    write_file("images", images, sizeof images);
    write_file("labels", labels, sizeof labels);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char path[200];
    path_of("images", path);
    unlink(path);
    path_of("labels", path);
    unlink(path);
    return rmdir(dir);
}

static void open_set(struct dataset *set)
{
    char images[200], labels[200];
    struct err e = {0};
    path_of("images", images);
    path_of("labels", labels);
    if (dataset_open(set, NULL, images, labels, 10, &e))
        fail_msg("%s", e.text);
}

static void ids_of(const void *ctx, uint64_t step, uint64_t first, size_t count, uint64_t *out)
{
    sampler_ids(ctx, step, first, count, out);
}

// A feed of one rank, with the set that it reads and the samples that it draws.
struct feeding {
    struct dataset set;
    struct sampler sampler;
    struct feed_options options;
    struct feed *feed;
    void *host[2];
    struct err e;
};

// Opens the set for a feed with these options, and fills in what they leave out.
static void prepare_feed(struct feeding *f, struct feed_options o)
{
    *f = (struct feeding){0};
    open_set(&f->set);
    f->sampler = (struct sampler){
        .n = SAMPLES, .batch = (uint64_t)(o.microbatches * o.microbatch), .seed = 9};
    for (int i = 0; i < 2; i++)
        o.host[i] = f->host[i] = malloc(feed_bytes(&f->set, o.microbatches, o.local));
    o.set = &f->set;
    o.ids = ids_of;
    o.ctx = &f->sampler;
    f->options = o;
}

static void start_feed(struct feeding *f, struct feed_options o)
{
    prepare_feed(f, o);
    assert_int_equal(feed_open(&f->options, &f->feed, &f->e), 0);
}

static void stop_feed(struct feeding *f)
{
    feed_close(f->feed);
    free(f->host[0]);
    free(f->host[1]);
    dataset_close(&f->set);
}

// Two ranks, three microbatches of four samples: rank r holds two of each.
static void every_rank_reads_its_part_of_every_microbatch(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct feeding f;
        start_feed(&f, (struct feed_options){.microbatches = 3,
                                             .microbatch = 4,
                                             .start = 2 * rank,
                                             .local = 2,
                                             .first = 5,
                                             .end = 25});
        for (uint64_t step = 5; step < 25; step++) {
            struct batch b;
            uint64_t want[BATCH];
            assert_int_equal(feed_next(f.feed, &b, &f.e), 0);
            sampler_ids(&f.sampler, step, 0, BATCH, want);
            for (int i = 0; i < 6; i++) {
                uint64_t id = want[i / 2 * 4 + 2 * rank + i % 2];
                const unsigned char *image = (const unsigned char *)b.images + (size_t)i * FEATURES;
                assert_int_equal(image[0], id * FEATURES);
                assert_int_equal(image[2], id * FEATURES + 2);
                assert_int_equal(b.labels[i], id % 10);
            }
        }
        stop_feed(&f);
    }
}

static const struct feed_options alone = {
    .microbatches = 1, .microbatch = 4, .local = 4, .end = 1000000};

static void closing_early_ends_the_thread(void **state)
{
    (void)state;
    struct feeding f;
    struct batch b;
    start_feed(&f, alone);
    assert_int_equal(feed_next(f.feed, &b, &f.e), 0);
    stop_feed(&f);
}

static void a_file_cut_while_training_ends_the_feed_naming_it(void **state)
{
    (void)state;
    struct feeding f;
    struct batch b;
    char path[200];
    int rc = 0;
    path_of("images", path);
    prepare_feed(&f, alone);
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(feed_open(&f.options, &f.feed, &f.e), 0);
    for (int i = 0; i < 5 && !rc; i++)
        rc = feed_next(f.feed, &b, &f.e);
    assert_int_equal(rc, ERR_DATA);
    assert_non_null(strstr(f.e.text, path));
    stop_feed(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_reads_its_part_of_every_microbatch),
        cmocka_unit_test(closing_early_ends_the_thread),
        cmocka_unit_test(a_file_cut_while_training_ends_the_feed_naming_it),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
