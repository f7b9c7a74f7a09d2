// SPDX-License-Identifier: Apache-2.0
// Which of several processes this one is, from environments as schedulers set them, and as people
// spoil them.
#include <stdio.h>
#include <string.h>

#include "coordinator/cli/allocation.h"
#include "tests/unit/unit.h"

// "NAME=VALUE NAME=VALUE"
static const char *get_from(void *ctx, const char *name)
{
    static char values[64][300];
    static int next;
    char *value = values[next++ % 64];
    size_t n = strlen(name);
    for (const char *at = ctx; at && *at; at = strchr(at, ' '), at += at ? 1 : 0) {
        if (strncmp(at, name, n) != 0 || at[n] != '=')
            continue;
        snprintf(value, sizeof *values, "%.*s", (int)strcspn(at + n + 1, " "), at + n + 1);
        return value;
    }
    return NULL;
}

static struct allocation read_good(const char *environment)
{
    struct allocation a;
    struct err e = {0};
    char copy[2000];
    snprintf(copy, sizeof copy, "%s", environment);
    if (allocation_read(get_from, copy, &a, &e))
        fail_msg("%s: %s", environment, e.text);
    return a;
}

static void assert_refused(const char *environment, const char *names)
{
    struct allocation a;
    struct err e = {0};
    char copy[2000];
    snprintf(copy, sizeof copy, "%s", environment);
    if (allocation_read(get_from, copy, &a, &e) != ERR_INVALID)
        fail_msg("taken: %s", environment);
    if (!strstr(e.text, names))
        fail_msg("%s: '%s' does not say '%s'", environment, e.text, names);
}

#define STEP "SLURM_JOB_ID=71 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[1-4] "

static void a_step_of_srun(void **state)
{
    (void)state;
    struct allocation a = read_good(STEP "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_RESTART_COUNT=3 "
                                         "SLURM_JOB_END_TIME=1800000000");
    assert_int_equal(a.kind, ALLOCATION_SLURM);
    assert_int_equal(a.index, 2);
    assert_int_equal(a.size, 4);
    assert_int_equal(a.end_s, 1800000000);
    assert_string_equal(a.id, "slurm 71.0 start 3");
    assert_non_null(strstr(a.text, "SLURM_PROCID=2"));
    struct allocation first = read_good(STEP "SLURM_PROCID=0 SLURM_NTASKS=4");
    assert_string_equal(first.id, "slurm 71.0 start 0");
    assert_int_equal(first.end_s, 0);
}

static void a_script_of_sbatch_is_alone(void **state)
{
    (void)state;
    // As Slurm 22.05 sets them in the batch script of four nodes, and in salloc's shell.
    struct allocation a = read_good("SLURM_JOB_ID=71 SLURM_PROCID=0 SLURM_LOCALID=0 "
                                    "SLURM_NTASKS=4 SLURM_JOB_NUM_NODES=4 "
                                    "SLURM_JOB_END_TIME=1800000000");
    assert_int_equal(a.kind, ALLOCATION_NONE);
    assert_int_equal(a.end_s, 1800000000);
    assert_non_null(strstr(a.doubt, "srun"));
    a = read_good("SLURM_JOB_ID=71 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=1 "
                  "SLURM_JOB_NUM_NODES=1");
    assert_int_equal(a.kind, ALLOCATION_NONE);
    assert_string_equal(a.doubt, "");
}

static void pods(void **state)
{
    (void)state;
    struct allocation a =
        read_good("JOB_COMPLETION_INDEX=3 WORLD_SIZE=5 KUBERNETES_SERVICE_HOST=10.0.0.1");
    assert_int_equal(a.kind, ALLOCATION_KUBERNETES);
    assert_int_equal(a.index, 3);
    assert_int_equal(a.size, 5);
    a = read_good("JOB_COMPLETION_INDEX=1 PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=8 "
                  "PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500");
    assert_int_equal(a.kind, ALLOCATION_KUBERNETES);
    assert_int_equal(a.index, 1);
    assert_int_equal(a.size, 2);
    assert_string_equal(a.host, "job-node-0-0.job");
    assert_int_equal(a.port, 29500);
}

static void others(void **state)
{
    (void)state;
    struct allocation a = read_good("RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.1.0.4 MASTER_PORT=7700 "
                                    "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1");
    assert_int_equal(a.kind, ALLOCATION_OTHER);
    assert_int_equal(a.index, 1);
    assert_int_equal(a.size, 3);
    assert_string_equal(a.host, "10.1.0.4");
    assert_int_equal(a.port, 7700);
    // Slurm's step whose script sets the others' too, the same.
    a = read_good(STEP "SLURM_PROCID=1 SLURM_NTASKS=4 RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1");
    assert_int_equal(a.kind, ALLOCATION_SLURM);
    assert_string_equal(a.host, "n1");
}

static void alone(void **state)
{
    (void)state;
    static const char *const all[] = {"", "HOME=/root", "MASTER_ADDR=a MASTER_PORT=7",
                                      "WORLD_SIZE=1", "RANK= WORLD_SIZE="};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(read_good(all[i]).kind, ALLOCATION_NONE);
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *names;
    } all[] = {
        {STEP "SLURM_PROCID=1 SLURM_NTASKS=4 JOB_COMPLETION_INDEX=1", "JOB_COMPLETION_INDEX"},
        {STEP "SLURM_PROCID=1 SLURM_NTASKS=8", "--ntasks-per-node=1"},
        {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_LOCALID=1 SLURM_PROCID=1 SLURM_NTASKS=2",
         "--ntasks-per-node=1"},
        {STEP "SLURM_PROCID=1 SLURM_NTASKS=4 RANK=2", "RANK=2"},
        {STEP "SLURM_PROCID=1 SLURM_NTASKS=4 WORLD_SIZE=32", "WORLD_SIZE=32"},
        {STEP "SLURM_PROCID=4 SLURM_NTASKS=4", "beyond"},
        {STEP "SLURM_PROCID=-1 SLURM_NTASKS=4", "SLURM_PROCID"},
        {STEP "SLURM_NTASKS=4", "SLURM_PROCID"},
        {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[ SLURM_PROCID=0 SLURM_NTASKS=1",
         "SLURM_STEP_NODELIST"},
        {"JOB_COMPLETION_INDEX=3", "WORLD_SIZE"},
        {"JOB_COMPLETION_INDEX=one", "JOB_COMPLETION_INDEX"},
        {"JOB_COMPLETION_INDEX=1 PET_NODE_RANK=0 PET_NNODES=2", "PET_NODE_RANK=0"},
        {"JOB_COMPLETION_INDEX=2 WORLD_SIZE=2", "beyond"},
        {"PET_NODE_RANK=0 PET_NNODES=1:4", "PET_NNODES"},
        {"PET_NODE_RANK=0", "PET_NNODES"},
        {"RANK=0", "WORLD_SIZE"},
        {"WORLD_SIZE=4", "RANK"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a PET_MASTER_ADDR=b", "PET_MASTER_ADDR"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=0", "MASTER_PORT"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a/b", "MASTER_ADDR"},
        {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", "LOCAL_RANK"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE"},
        {"RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x", "torchrun"},
        {"RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "mpirun"},
        {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0", "mpirun"},
        {"RANK=99999999999999999999 WORLD_SIZE=2", "RANK"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_refused(all[i].environment, all[i].names);
}

static void lists_of_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        int hosts;
    } all[] = {
        {"n1", 1},
        {"n1,n2", 2},
        {"n[1-4]", 4},
        {"n[01-03,7],gpu1", 5},
        {"r[1-2]n[1-8]", 16},
        {"a-b-[10-10]", 1},
        {"n[1-65536]", 65536},
        {"", -1},
        {",", -1},
        {"n1,", -1},
        {"n[", -1},
        {"n[]", -1},
        {"n[3-1]", -1},
        {"n[1-", -1},
        {"n[1-2", -1},
        {"n[x]", -1},
        {"n[1-65537]", -1},
        {"n[1-9999999999999999999999]", -1},
        {"n[1-60000],m[1-60000]", -1},
        {"a[1-60000]b[1-60000]c[1-60000]", -1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (allocation_count_hosts(all[i].list) != all[i].hosts)
            fail_msg("%s: %d", all[i].list, allocation_count_hosts(all[i].list));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_srun), cmocka_unit_test(a_script_of_sbatch_is_alone),
        cmocka_unit_test(pods),           cmocka_unit_test(others),
        cmocka_unit_test(alone),          cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(lists_of_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
