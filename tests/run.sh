#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the C tests given (cuda:PROGRAM: on the emulated CUDA backend), then (unless WEFT_ONLY_C) the
# Python suites that drive the binaries.
# Every test runs, whatever failed before; the last line counts.
set -u
build=$1
shift
# One program may take so long: the simulator of check-long runs 100,000 schedules.
limit=600
[ -n "${WEFT_LONG:-}" ] && limit=3000
passed=0 failed=0 list=""
export WEFT_BACKEND_DIR="$PWD/$build"
export WEFT_BUILD="$PWD/$build"
# Kernel-side caches of the libraries' own leak at exit; ours must not.
export LSAN_OPTIONS="suppressions=$PWD/tests/lint/lsan.supp:print_suppressions=0"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:halt_on_error=1"
log=$(mktemp)
for t in "$@"; do
    name=$(basename "$t")
    unset WEFT_RIG
    export WEFT_BACKEND_DIR="$PWD/$build"
    case $t in
    cuda:*)
        t=${t#cuda:}
        name="$name on cuda, emulated"
        export WEFT_RIG=cuda WEFT_BACKEND_DIR="$PWD/$build/tests/cuda"
        ;;
    esac
    if timeout "$limit" "$t" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name  $(grep -c '\[       OK \]' "$log") cases"
        grep -h 'SKIPPED\|SKIP:' "$log" | sed 's/^/        /' | sort -u
    else
        failed=$((failed + 1))
        list="$list $name"
        echo "FAILED  $name (exit $?)"
        tail -n 40 "$log"
    fi
done
rm -f "$log"
unset WEFT_RIG
export WEFT_BACKEND_DIR="$PWD/$build"
if [ -z "${WEFT_ONLY_C:-}" ]; then
    if /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/e2e tests/fault; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        list="$list pytest"
    fi
fi
[ -n "$list" ] && echo "failed:$list"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
