// SPDX-License-Identifier: Apache-2.0
// What is a URL, and what is a path however odd.
#include <string.h>

#include "common/base/url.h"
#include "tests/unit/unit.h"

static void schemes_are_refused_whatever_they_are(void **state)
{
    static const char *const urls[] = {"gs://bucket/run", "s3://b",       "hdfs:/x", "HDFS://x/y",
                                       "file:///data",    "svn+ssh://a/", "x-y.z:/a"};
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        struct err e = {0};
        assert_int_equal(url_refuse(urls[i], &e), ERR_INVALID);
        assert_non_null(strstr(e.text, urls[i]));
        assert_non_null(strstr(e.text, "files and folders alone"));
    }
}

static void paths_are_taken(void **state)
{
    static const char *const paths[] = {"",    "a",     "/a/b",        "../x", "./gs:/x",
                                        "a:b", "12:/x", "a/b://c",     "c:/x", "part:001",
                                        ":/x", "+a:/x", "gs bucket:/x"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_int_equal(url_refuse(paths[i], NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemes_are_refused_whatever_they_are),
        cmocka_unit_test(paths_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
