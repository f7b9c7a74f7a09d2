#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the C tests given, as many at a time as there are cores (WEFT_TEST_JOBS), then (unless
# WEFT_ONLY_C) the Python suites that drive the binaries: these wait most of the time, for ranks to
# start and limits to pass, so that two at a time a core leave none idle.
# Every test runs, whatever failed before; the last line counts.
set -u
build=$1
shift
jobs=${WEFT_TEST_JOBS:-$(nproc)}
# One program may take so long: under sanitizers some take minutes, and the simulator of check-long
# runs 100,000 schedules.
limit=1500
[ -n "${WEFT_LONG:-}" ] && limit=3000
export WEFT_BACKEND_DIR="$PWD/$build"
export WEFT_BUILD="$PWD/$build"
# Kernel-side caches of the libraries' own leak at exit; ours must not.
export LSAN_OPTIONS="suppressions=$PWD/tests/lint/lsan.supp:print_suppressions=0"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:halt_on_error=1"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh tests/run_one.sh "$results" "$limit"
touch "$results/failed"
list=$(tr '\n' ' ' <"$results/failed")
failed=$(wc -l <"$results/failed")
passed=$(($# - failed))
if [ -z "${WEFT_ONLY_C:-}" ]; then
    if /usr/bin/python3 -m pytest -q -p no:cacheprovider -n $((2 * jobs)) tests/e2e tests/fault; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        list="${list}pytest"
    fi
fi
[ -n "$list" ] && echo "failed: $list"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
