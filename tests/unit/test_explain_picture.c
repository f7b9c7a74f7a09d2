// SPDX-License-Identifier: Apache-2.0
// The pictures of a plan, held against ones drawn by hand; none is wider than the terminal.
#include "common/explain/picture.h"
#include "tests/unit/compile_case.h"

#define SMALL                                                     \
    "name: t\n"                                                   \
    "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n" \
    "data: {train: {images: i, labels: l}, batch: %d}\n"          \
    "train: {steps: 1, microbatches: %d}\n"                       \
    "mesh: {%s}\n%s"

static char *draw(enum picture p, int width, int batch, int microbatches, const char *mesh,
                  const char *sharding)
{
    struct fixture f;
    struct buf out = {0};
    char text[1000];
    snprintf(text, sizeof text, SMALL, batch, microbatches, mesh, sharding);
    (void)compile_any(&f, text);
    if (!f.c.whole)
        fail_msg("%s", f.e.text);
    picture_print(p, &f.c, width, &out);
    fixture_clear(&f);
    return out.data;
}

static void expect(char *drawn, const char *want)
{
    if (strcmp(drawn, want) != 0)
        fail_msg("drawn:\n%s\nwanted:\n%s", drawn, want);
    free(drawn);
}

// The part of a picture from `from` on to the next empty line.
static char *part(char *drawn, const char *from)
{
    char *at = strstr(drawn, from);
    if (!at) {
        fail_msg("no '%s' in\n%s", from, drawn);
        return NULL;
    }
    char *end = strstr(at, "\n\n"), *out = end ? strndup(at, (size_t)(end + 1 - at)) : strdup(at);
    free(drawn);
    return out;
}

static void a_mesh_is_a_grid_of_ranks(void **state)
{
    (void)state;
    expect(draw(PICTURE_MESH, 80, 16, 1, "dp: 2, tp: 4", ""),
           "mesh {dp: 2, tp: 4}: 8 devices, each by its rank\n"
           "       tp=0   tp=1   tp=2   tp=3\n"
           "     ┌──────┬──────┬──────┬──────┐\n"
           "dp=0 │ 0    │ 1    │ 2    │ 3    │\n"
           "     ├──────┼──────┼──────┼──────┤\n"
           "dp=1 │ 4    │ 5    │ 6    │ 7    │\n"
           "     └──────┴──────┴──────┴──────┘\n");
    expect(draw(PICTURE_MESH, 80, 16, 1, "dp: 1", ""), "mesh {dp: 1}: 1 device, each by its rank\n"
                                                       "  ┌───┐\n"
                                                       "  │ 0 │\n"
                                                       "  └───┘\n");
}

static void outer_axes_make_a_grid_each_and_axes_of_one_device_none(void **state)
{
    (void)state;
    expect(draw(PICTURE_MESH, 80, 16, 1, "pod: 2, one: 1, dp: 2, tp: 2",
                "sharding: {rules: {batch: [pod, dp]}}\n"),
           "mesh {pod: 2, one: 1, dp: 2, tp: 2}: 8 devices, each by its rank\n"
           "pod=0\n"
           "       tp=0   tp=1\n"
           "     ┌──────┬──────┐\n"
           "dp=0 │ 0    │ 1    │\n"
           "     ├──────┼──────┤\n"
           "dp=1 │ 2    │ 3    │\n"
           "     └──────┴──────┘\n"
           "pod=1\n"
           "       tp=0   tp=1\n"
           "     ┌──────┬──────┐\n"
           "dp=0 │ 4    │ 5    │\n"
           "     ├──────┼──────┤\n"
           "dp=1 │ 6    │ 7    │\n"
           "     └──────┴──────┘\n");
}

static void a_long_row_keeps_its_beginning_and_its_end(void **state)
{
    (void)state;
    // 3 columns of a label and 6 cells of 9: a seventh would be the 66th column.
    expect(draw(PICTURE_MESH, 60, 4096, 1, "dp: 4096", ""),
           "mesh {dp: 4096}: 4096 devices, each by its rank\n"
           "    dp=0      dp=1      dp=2      …         dp=4095\n"
           "  ┌─────────┬─────────┬─────────┬─────────┬─────────┐\n"
           "  │ 0       │ 1       │ 2       │ …       │ 4095    │\n"
           "  └─────────┴─────────┴─────────┴─────────┴─────────┘\n");
}

static void a_block_names_the_ranks_that_hold_it(void **state)
{
    (void)state;
    // The hidden layer's columns are cut on tp: rank = 2·dp + tp.
    expect(part(draw(PICTURE_SHARDING, 80, 16, 1, "dp: 2, tp: 2", ""), "layers/0/weight"),
           "layers/0/weight  4×8 [~, tp]\n"
           "  2 blocks of 4×4, each on 2 devices, copies\n"
           "    0:4   4:8\n"
           "  ┌─────┬─────┐\n"
           "  │ 0,2 │ 1,3 │\n"
           "  └─────┴─────┘\n");
    expect(part(draw(PICTURE_SHARDING, 80, 16, 1, "dp: 2, tp: 2", ""), "layers/1/bias"),
           "layers/1/bias  3 [~]\n"
           "  whole on 4 devices, copies: 0-3\n");
    expect(part(draw(PICTURE_SHARDING, 80, 16, 1, "dp: 2, tp: 2", ""), "act_hidden"),
           "act_hidden  16×8 [dp, tp]\n"
           "  4 blocks of 8×4\n"
           "       0:4   4:8\n"
           "     ┌─────┬─────┐\n"
           "0:8  │ 0   │ 1   │\n"
           "     ├─────┼─────┤\n"
           "8:16 │ 2   │ 3   │\n"
           "     └─────┴─────┘\n");
}

static void the_order_of_a_dimensions_axes_is_seen(void **state)
{
    (void)state;
    // 8 rows over [y, x] of {x: 2, y: 4}: block y·2 + x lies on rank x·4 + y.
    expect(part(draw(PICTURE_SHARDING, 80, 16, 1, "x: 2, y: 4",
                     "sharding: {rules: {batch: [y, x], mlp: ~}}\n"),
                "act_hidden"),
           "act_hidden  16×8 [[y, x], ~]\n"
           "  8 blocks of 2×8\n"
           "    0:2     2:4     4:6     6:8     8:10    10:12   12:14   14:16\n"
           "  ┌───────┬───────┬───────┬───────┬───────┬───────┬───────┬───────┐\n"
           "  │ 0     │ 4     │ 1     │ 5     │ 2     │ 6     │ 3     │ 7     │\n"
           "  └───────┴───────┴───────┴───────┴───────┴───────┴───────┴───────┘\n");
}

static void a_tensor_on_the_inner_axis_of_two_hosts_is_there_twice(void **state)
{
    struct fixture f;
    struct buf out = {0};
    (void)state;
    // (256, 192) as (gpu, null) on {host: 2, gpu: 8}: blocks of (32, 192), a copy on each host.
    compile_text(&f,
                 "name: t\nmodel: {program: mlp, inputs: 256, hidden: [192], classes: 3}\n"
                 "data: {train: {images: i, labels: l}, batch: 16}\ntrain: {steps: 1}\n"
                 "mesh: {host: 2, gpu: 8}\n"
                 "sharding: {rules: {batch: host, mlp: gpu},\n"
                 "           params: [{match: layers/0/weight, spec: [gpu, ~]}]}\n",
                 0);
    picture_print(PICTURE_SHARDING, &f.c, 100, &out);
    fixture_clear(&f);
    expect(part(out.data, "layers/0/weight"),
           "layers/0/weight  256×192 [gpu, ~]\n"
           "  8 blocks of 32×192, each on 2 devices, copies\n"
           "    0:32      32:64     64:96     96:128    128:160   160:192   192:224   224:256\n"
           "  ┌─────────┬─────────┬─────────┬─────────┬─────────┬─────────┬─────────┬─────────┐\n"
           "  │ 0,8     │ 1,9     │ 2,10    │ 3,11    │ 4,12    │ 5,13    │ 6,14    │ 7,15    │\n"
           "  └─────────┴─────────┴─────────┴─────────┴─────────┴─────────┴─────────┴─────────┘\n");
}

static void gradient_accumulation_is_forward_and_backward_in_turn(void **state)
{
    (void)state;
    expect(draw(PICTURE_SCHEDULE, 80, 18, 3, "dp: 2", ""),
           "a step of 1 stage and 3 microbatches, time to the right\n"
           "stage 0   │F0 B0    F1 B1    F2 B2    │ U\n"
           "F forward, B backward (twice as long), each of a microbatch; U update; · waits\n"
           "stages wait 0 of the time\n");
}

// As long as one layer, so that there is a time to draw.
static void a_model_without_layers_has_a_schedule_too(void **state)
{
    static const char *const job =
        "name: t\nmodel: {program: vae, inputs: 12, hidden: [8], latent: 3}\nmesh: {dp: 2}\n"
        "data: {train: {images: i}, batch: 8}\noptimizer: {kind: sgd}\n"
        "schedule: {kind: constant, value: 1}\ntrain: {steps: 1, microbatches: 2}\n";
    struct fixture f;
    struct buf out = {0};
    (void)state;
    compile_text(&f, job, 0);
    picture_print(PICTURE_SCHEDULE, &f.c, 80, &out);
    fixture_clear(&f);
    expect(out.data, "a step of 1 stage and 2 microbatches, time to the right\n"
                     "stage 0   │F0 B0    F1 B1    │ U\n"
                     "F forward, B backward (twice as long), each of a microbatch; U update; · "
                     "waits\nstages wait 0 of the time\n");
}

static char *draw_pipeline(enum picture p, int width, const char *schedule, int stages)
{
    struct fixture f;
    struct buf out = {0};
    char text[1000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {program: mlp, inputs: 4, hidden: [8, 8, 8], classes: 4}\n"
             "data: {train: {images: i, labels: l}, batch: 16}\n"
             "train: {steps: 1, microbatches: 4}\n"
             "mesh: {pp: %d}\npipeline: {schedule: %s}\n",
             stages, schedule);
    compile_text(&f, text, 0);
    picture_print(p, &f.c, width, &out);
    fixture_clear(&f);
    return out.data;
}

static void a_stage_waits_for_its_neighbours(void **state)
{
    (void)state;
    // Two stages of two layers. 1f1b: stage 0 has done F0 and F1 when B0 comes, at 4; the last
    // backward of stage 1 ends at 13. 12 of 15 units are work.
    expect(draw_pipeline(PICTURE_SCHEDULE, 80, "1f1b", 2),
           "a step of 2 stages and 4 microbatches, time to the right\n"
           "stage 0   │F0 F1 ·  ·  B0    F2 B1    F3 B2    ·  B3    │ U\n"
           "stage 1   │·  F0 B0    F1 B1    F2 B2    F3 B3    ·  ·  │ U\n"
           "F forward, B backward (twice as long), each of a microbatch; U update; · waits\n"
           "stages wait 0.2 of the time\n");
    expect(draw_pipeline(PICTURE_SCHEDULE, 80, "gpipe", 2),
           "a step of 2 stages and 4 microbatches, time to the right\n"
           "stage 0   │F0 F1 F2 F3 ·  ·  ·  B0    B1    B2    B3    │ U\n"
           "stage 1   │·  F0 F1 F2 F3 B0    B1    B2    B3    ·  ·  │ U\n"
           "F forward, B backward (twice as long), each of a microbatch; U update; · waits\n"
           "stages wait 0.2 of the time\n");
}

// Two stages of two layers. Under zero_bubble each slot is as long as a forward: stage 0 waits a slot
// for B0, stage 1 one for F0.
static void a_backward_in_two_is_drawn_in_two(void **state)
{
    (void)state;
    expect(
        draw_pipeline(PICTURE_SCHEDULE, 80, "zero_bubble", 2),
        "a step of 2 stages and 4 microbatches, time to the right\n"
        "stage 0   │F0 F1 ·  B0 W0 F2 B1 W1 F3 B2 W2 B3 W3 │ U\n"
        "stage 1   │·  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3 │ U\n"
        "F forward, B backward, W gradients of weights, each of a microbatch; U update; · waits\n"
        "stages wait 0.0769 of the time\n");
}

// A layer a chunk: stage 0 is through with F0.1 at 3 and waits for its backward from 5 to 6. The last
// backward ends at 27, of which each stage works 24.
static void chunks_are_named_behind_their_microbatch(void **state)
{
    (void)state;
    expect(
        draw_pipeline(PICTURE_SCHEDULE, 160, "interleaved, chunks: 2", 2),
        "a step of 2 stages and 4 microbatches, time to the right\n"
        "stage 0   │F0.0 F1.0 F0.1 F1.1 F2.0 ·    B0.1      F3.0 B1.1      F2.1 B0.0"
        "      F3.1 B1.0      ·    B2.1      ·    B3.1      B2.0      B3.0      │ U\n"
        "stage 1   │·    F0.0 F1.0 F0.1 B0.1      F1.1 B1.1      F2.0 B0.0      F3.0"
        " B1.0      F2.1 B2.1      F3.1 B3.1      B2.0      B3.0      ·    ·    │ U\n"
        "F forward, B backward (twice as long), each of a microbatch; 2.1: microbatch 2, chunk 1; "
        "U update; · waits\n"
        "stages wait 0.111 of the time\n");
}

static void a_long_schedule_keeps_its_beginning_and_its_end(void **state)
{
    (void)state;
    // 26 columns are 8 units of 3: five from the beginning, an ellipsis, two from the end.
    expect(draw_pipeline(PICTURE_SCHEDULE, 40, "gpipe", 2),
           "a step of 2 stages and 4 microbatches, time to the right\n"
           "stage 0   │F0 F1 F2 F3 ·  …  B3    │ U\n"
           "stage 1   │·  F0 F1 F2 F3 …  ·  ·  │ U\n"
           "F forward, B backward (twice as long), each of a microbatch; U update; · waits\n"
           "stages wait 0.2 of the time\n");
}

static void a_stages_parameter_lies_on_its_ranks_alone(void **state)
{
    (void)state;
    expect(part(draw_pipeline(PICTURE_SHARDING, 80, "1f1b", 4), "layers/2/bias"),
           "layers/2/bias  8 [~]\n"
           "  whole on 1 device: 2\n");
}

// Two stages of two layers on {dp: 2, pp: 2, tp: 2}: rank = 4·dp + 2·pp + tp, so that stage 0 is on
// ranks 0, 1, 4, 5 and stage 1 on the others.
static void layers_are_separated_by_their_stage(void **state)
{
    static const char *const says[] = {
        "\nlayers/0-1/norm1/weight  32 [~]\n  whole on 4 devices, copies: 0,1,4,5\n",
        "\nlayers/2-3/norm1/weight  32 [~]\n  whole on 4 devices, copies: 2,3,6,7\n",
        "\nact_seq of stage 0  2×32×32 [dp, ~, ~]\n",
        "\nact_seq of stage 1  2×32×32 [dp, ~, ~]\n",
        "\nembed/positions  32×32 [~, ~]\n  whole on 4 devices, copies: 0,1,4,5\n",
    };
    struct fixture f;
    struct buf out = {0};
    (void)state;
    compile_text(&f,
                 "name: t\n"
                 "model: {program: gpt2, layers: 4, embed: 32, heads: 4, "
                 "head_dim: 8, seq: 32, vocab: 256}\n"
                 "data: {format: tokens, train: {tokens: t}, batch: 8}\n"
                 "train: {steps: 1, microbatches: 4}\n"
                 "mesh: {dp: 2, pp: 2, tp: 2}\n",
                 0);
    picture_print(PICTURE_SHARDING, &f.c, 80, &out);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(buf_str(&out), says[i]))
            fail_msg("no '%s' in\n%s", says[i], buf_str(&out));
    assert_null(strstr(buf_str(&out), "layers/*"));
    buf_clear(&out);
    fixture_clear(&f);
}

// Rank r of {dp: 16, tp: 2} holds part r % 2: of 16 ranks a cell of 12 columns names five.
static void many_ranks_of_a_block_are_the_first_and_the_last(void **state)
{
    (void)state;
    expect(part(draw(PICTURE_SHARDING, 80, 16, 1, "dp: 16, tp: 2", ""), "layers/0/weight"),
           "layers/0/weight  4×8 [~, tp]\n"
           "  2 blocks of 4×4, each on 16 devices, copies\n"
           "    0:4            4:8\n"
           "  ┌──────────────┬──────────────┐\n"
           "  │ 0,2,4,6,…,30 │ 1,3,5,7,…,31 │\n"
           "  └──────────────┴──────────────┘\n");
}

static void memory_is_shown_by_category(void **state)
{
    (void)state;
    // 4·8 + 8 + 8·3 + 3 = 67 parameters of 4 bytes, as many gradients, two moments.
    char *drawn = draw(PICTURE_MEMORY, 80, 16, 1, "dp: 2", "");
    assert_non_null(strstr(drawn, "  params      268 B "));
    assert_non_null(strstr(drawn, "  grads       268 B "));
    assert_non_null(strstr(drawn, "  optimizer   536 B "));
    assert_non_null(strstr(drawn, "kept for the backward"));
    // 8 samples of a rank: the hidden layer that relu's backward reads is 8×8 floats.
    assert_non_null(strstr(drawn, "256 B"));
    free(drawn);
}

static void nothing_drawn_is_wider_than_the_terminal(void **state)
{
    static const struct {
        const char *mesh;
        int batch;
        const char *sharding;
    } meshes[] = {{"dp: 1", 8, ""},
                  {"dp: 3", 9, ""},
                  {"dp: 2, tp: 8", 8, ""},
                  {"dp: 64", 64, ""},
                  {"dp: 16, fsdp: 2, tp: 4", 32, ""},
                  {"a: 2, b: 2, dp: 8, fsdp: 4, tp: 2", 128,
                   "sharding: {rules: {batch: [a, b, dp, fsdp]}}\n"},
                  {"dp: 4096", 4096, ""}};
    static const int widths[] = {1, 40, 57, 80, 200};
    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int p = 0; p < PICTURE_KINDS; p++) {
                char *drawn = draw((enum picture)p, widths[w], meshes[m].batch, 1, meshes[m].mesh,
                                   meshes[m].sharding);
                int most = widths[w] < PICTURE_NARROWEST ? PICTURE_NARROWEST : widths[w];
                for (char *line = strtok(drawn, "\n"); line; line = strtok(NULL, "\n"))
                    if ((strstr(line, "│") || strstr(line, "─")) && text_columns(line) > most)
                        fail_msg("mesh {%s}, %d columns: %s", meshes[m].mesh, most, line);
                free(drawn);
            }
}

// 20 stages of a layer have 12 tensors each: none is left out, nor what comes behind them.
static void every_parameter_of_many_stages_is_drawn(void **state)
{
    struct fixture f;
    struct buf out = {0};
    (void)state;
    compile_text(&f,
                 "name: t\n"
                 "model: {program: gpt2, layers: 20, embed: 8, heads: 2, seq: 4, "
                 "vocab: 16}\n"
                 "data: {format: tokens, train: {tokens: t}, batch: 20}\n"
                 "train: {steps: 1, microbatches: 20}\n"
                 "mesh: {pp: 20}\n",
                 0);
    picture_print(PICTURE_SHARDING, &f.c, 80, &out);
    assert_non_null(strstr(buf_str(&out), "\nlayers/19/mlp/out/bias  8 "));
    assert_non_null(strstr(buf_str(&out), "\nnorm/bias  8 "));
    assert_non_null(strstr(buf_str(&out), "\nact_logits  1×4×128 "));
    buf_clear(&out);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mesh_is_a_grid_of_ranks),
        cmocka_unit_test(outer_axes_make_a_grid_each_and_axes_of_one_device_none),
        cmocka_unit_test(a_long_row_keeps_its_beginning_and_its_end),
        cmocka_unit_test(a_block_names_the_ranks_that_hold_it),
        cmocka_unit_test(the_order_of_a_dimensions_axes_is_seen),
        cmocka_unit_test(a_tensor_on_the_inner_axis_of_two_hosts_is_there_twice),
        cmocka_unit_test(gradient_accumulation_is_forward_and_backward_in_turn),
        cmocka_unit_test(a_model_without_layers_has_a_schedule_too),
        cmocka_unit_test(a_stage_waits_for_its_neighbours),
        cmocka_unit_test(a_backward_in_two_is_drawn_in_two),
        cmocka_unit_test(chunks_are_named_behind_their_microbatch),
        cmocka_unit_test(a_long_schedule_keeps_its_beginning_and_its_end),
        cmocka_unit_test(a_stages_parameter_lies_on_its_ranks_alone),
        cmocka_unit_test(layers_are_separated_by_their_stage),
        cmocka_unit_test(many_ranks_of_a_block_are_the_first_and_the_last),
        cmocka_unit_test(every_parameter_of_many_stages_is_drawn),
        cmocka_unit_test(memory_is_shown_by_category),
        cmocka_unit_test(nothing_drawn_is_wider_than_the_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
