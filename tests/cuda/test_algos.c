// SPDX-License-Identifier: Apache-2.0
// Choices of algorithms as text and on disk, without a device: what is read is what was written,
// what is damaged or somebody else's is as nothing, and who saves keeps what others saved.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/algos.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"

#define OWNER "NVIDIA H200, sm_90, 132 processors, cublaslt 13.1.0"

static char folder[TEMP_FOLDER_MAX];

static int setup(void **state)
{
    (void)state;
    return temp_folder_make(folder, "algos");
}

// The one file of the folder; false: there is none.
static bool file_path(char path[400])
{
    DIR *d = opendir(folder);
    struct dirent *f;
    bool found = false;
    assert_non_null(d);
    while ((f = readdir(d)))
        if (strncmp(f->d_name, "algorithms-", 11) == 0) {
            snprintf(path, 400, "%s/%s", folder, f->d_name);
            found = true;
        }
    closedir(d);
    return found;
}

static int teardown(void **state)
{
    (void)state;
    return temp_folder_remove(folder);
}

static void some(struct algos *a, const char *owner)
{
    algos_init(a, owner);
    algos_put(a, "b 2", "00aa", 41.26);
    algos_put(a, "a 1", "none", 0);
    algos_put(a, "c 3", "1234", 7);
    algos_put(a, "b 2", "00ab", 41.25);
}

static void expect_text(const struct algos *a, const char *want)
{
    struct buf text = {0};
    algos_print(a, false, &text);
    assert_string_equal(buf_str(&text), want);
    buf_clear(&text);
}

#define TEXT "algorithms " OWNER "\na 1 = none\nb 2 = 00ab\nc 3 = 1234\n"

// ---- text --------------------------------------------------------------------------------------

static void choices_are_printed_sorted_and_the_last_of_a_key_counts(void **state)
{
    struct algos a;
    (void)state;
    some(&a, OWNER);
    expect_text(&a, TEXT);
    assert_string_equal(algos_get(&a, "b 2"), "00ab");
    assert_null(algos_get(&a, "b"));
    assert_null(algos_get(&a, "d"));
    algos_clear(&a);
}

static void texts_that_are_read_add_up(void **state)
{
    struct algos a;
    struct err e = {0};
    (void)state;
    algos_init(&a, OWNER);
    assert_int_equal(algos_read(&a, TEXT, &e), 0);
    assert_int_equal(algos_read(&a, "algorithms " OWNER "\nd = 9 3.5\nb 2 = none 0.0\n", &e), 0);
    expect_text(&a, "algorithms " OWNER "\na 1 = none\nb 2 = none\nc 3 = 1234\nd = 9\n");
    algos_clear(&a);
}

static void what_is_no_such_text_changes_nothing(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } cases[] = {
        {"", ERR_INVALID},
        {"a 1 = 2\n", ERR_INVALID},
        {"algorithms NVIDIA H100, sm_90, 132 processors, cublaslt 13.1.0\na 1 = 2\n",
         ERR_UNSUPPORTED},
        {"algorithms " OWNER " \na 1 = 2\n", ERR_UNSUPPORTED},
        {"algorithms " OWNER "\na 1 = 2\nb\n", ERR_INVALID},
        {"algorithms " OWNER "\na 1 = \n", ERR_INVALID},
        {"algorithms " OWNER "\n = 2\n", ERR_INVALID},
        {"algorithms " OWNER "\na 1 = 2 fast\n", ERR_INVALID},
        {"algorithms " OWNER "\na 1 = 2 -1\n", ERR_INVALID},
        {"algorithms " OWNER "\na 1 = 2 1.0 2.0\n", ERR_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct algos a;
        struct err e = {0};
        some(&a, OWNER);
        assert_int_equal(algos_read(&a, cases[i].text, &e), cases[i].rc);
        assert_true(e.text[0]);
        expect_text(&a, TEXT);
        algos_clear(&a);
    }
}

// ---- the folder --------------------------------------------------------------------------------

static void save(const struct algos *a)
{
    struct err e = {0};
    if (algos_save(a, folder, &e))
        fail_msg("%s", e.text);
}

static void what_was_saved_is_there_with_its_time(void **state)
{
    struct algos a, back;
    struct buf text = {0};
    char path[400];
    struct stat st;
    (void)state;
    some(&a, OWNER);
    save(&a);
    algos_init(&back, OWNER);
    algos_load(&back, folder);
    algos_print(&back, true, &text);
    assert_string_equal(buf_str(&text),
                        "algorithms " OWNER "\na 1 = none 0.0\nb 2 = 00ab 41.2\nc 3 = 1234 7.0\n");
    assert_true(file_path(path));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    buf_clear(&text);
    algos_clear(&a);
    algos_clear(&back);
}

static void a_folder_without_the_file_is_nothing(void **state)
{
    struct algos a;
    (void)state;
    algos_init(&a, OWNER);
    algos_load(&a, folder);
    algos_load(&a, "/nonexistent/folder");
    assert_int_equal(a.n, 0);
    algos_clear(&a);
}

static void another_device_or_version_has_a_file_of_its_own(void **state)
{
    struct algos a, other;
    char path[400];
    (void)state;
    some(&a, OWNER);
    save(&a);
    assert_true(file_path(path));
    algos_init(&other, "NVIDIA H200, sm_90, 132 processors, cublaslt 13.2.0");
    algos_load(&other, folder);
    assert_int_equal(other.n, 0);
    algos_clear(&other);
    algos_clear(&a);
}

static char *file_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "r");
    char *text = malloc(4096);
    assert_non_null(f);
    assert_non_null(text);
    *n = fread(text, 1, 4096, f);
    fclose(f);
    return text;
}

static void file_write(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void expect_nothing(void)
{
    struct algos a;
    algos_init(&a, OWNER);
    algos_load(&a, folder);
    assert_int_equal(a.n, 0);
    algos_clear(&a);
}

// The warnings of thousands of damaged files would hide everything else.
static int quiet(void)
{
    int keep = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr));
    return keep;
}

static void loud(int keep)
{
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
}

static void a_file_with_any_byte_changed_or_cut_off_is_as_none(void **state)
{
    struct algos a;
    char path[400];
    size_t n;
    (void)state;
    some(&a, OWNER);
    save(&a);
    assert_true(file_path(path));
    char *text = file_read(path, &n);
    int keep = quiet();
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 1;
        file_write(path, text, n);
        text[i] ^= 1;
        expect_nothing();
        file_write(path, text, i);
        expect_nothing();
    }
    loud(keep);
    file_write(path, text, n);
    algos_clear(&a);
    algos_init(&a, OWNER);
    algos_load(&a, folder);
    assert_int_equal(a.n, 3);
    free(text);
    algos_clear(&a);
}

static void a_damaged_file_is_replaced_by_the_next_save(void **state)
{
    struct algos a;
    char path[400];
    (void)state;
    some(&a, OWNER);
    save(&a);
    assert_true(file_path(path));
    file_write(path, "end", 3);
    int keep = quiet();
    save(&a);
    loud(keep);
    algos_clear(&a);
    algos_init(&a, OWNER);
    algos_load(&a, folder);
    assert_int_equal(a.n, 3);
    algos_clear(&a);
}

// Eight processes save twenty keys each, over and over; nobody's are lost.
static void processes_that_save_at_once_lose_nothing(void **state)
{
    enum { PROCESSES = 8, KEYS = 20 };
    struct algos a;
    (void)state;
    for (int p = 0; p < PROCESSES; p++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child)
            continue;
        algos_init(&a, OWNER);
        for (int k = 0; k < KEYS; k++) {
            char key[40];
            snprintf(key, sizeof key, "key %d of %d", k, p);
            algos_put(&a, key, "77", 1);
            if (algos_save(&a, folder, NULL))
                _exit(1);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    algos_init(&a, OWNER);
    algos_load(&a, folder);
    assert_int_equal(a.n, PROCESSES * KEYS);
    algos_clear(&a);
}

static void a_folder_that_cannot_be_made_is_reported(void **state)
{
    struct algos a;
    struct err e = {0};
    (void)state;
    some(&a, OWNER);
    assert_int_not_equal(algos_save(&a, "/proc/nowhere", &e), 0);
    assert_non_null(strstr(e.text, "/proc/nowhere"));
    algos_clear(&a);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(choices_are_printed_sorted_and_the_last_of_a_key_counts),
        CASE(texts_that_are_read_add_up),
        CASE(what_is_no_such_text_changes_nothing),
        CASE(what_was_saved_is_there_with_its_time),
        CASE(a_folder_without_the_file_is_nothing),
        CASE(another_device_or_version_has_a_file_of_its_own),
        CASE(a_file_with_any_byte_changed_or_cut_off_is_as_none),
        CASE(a_damaged_file_is_replaced_by_the_next_save),
        CASE(processes_that_save_at_once_lose_nothing),
        CASE(a_folder_that_cannot_be_made_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
