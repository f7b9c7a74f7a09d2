#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the C tests given (run_one.sh says what one is), as many at a time as there are cores
# (WEFT_TEST_JOBS), and beside them (unless WEFT_ONLY_C) the Python suites that drive the binaries. These
# wait most of the time, for ranks to start and limits to pass: the C tests fill the cores meanwhile, at
# a lower priority. The suites that depend most on time follow by themselves.
# Every test runs, whatever failed before; the last line counts.
set -u
build=$1
shift
jobs=${WEFT_TEST_JOBS:-$(nproc)}
# One program may take so long: under sanitizers some take minutes, and the simulator of check-long
# runs 100,000 schedules.
limit=1500
[ -n "${WEFT_LONG:-}" ] && limit=3000
timed="tests/fault/test_hang.py tests/fault/test_service_network.py"
export WEFT_BACKEND_DIR="$PWD/$build"
export WEFT_BUILD="$PWD/$build"
# Kernel-side caches of the libraries' own leak at exit; ours must not.
export LSAN_OPTIONS="suppressions=$PWD/tests/lint/lsan.supp:print_suppressions=0"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1:halt_on_error=1"
results=$(mktemp -d)
touch "$results/failed"
chmod 711 "$results" # tests run programs as another user, too
# What tests leave behind goes with the results.
export TMPDIR="$results/t"
mkdir "$TMPDIR"
printf '%s\n' "$@" | nice -n 5 xargs -P "$jobs" -n 1 sh tests/run_one.sh "$results" "$limit" &
programs=$!
trap 'kill "$programs" 2>/dev/null; rm -rf "$results"' EXIT
trap 'exit 130' INT TERM

python() { # NAME ARGUMENT...: one call of pytest; its output comes in one piece
    name=$1
    shift
    # A shell's job in the background ignores Ctrl-C, and so would every program that the tests interrupt.
    env --default-signal=INT /usr/bin/python3 -m pytest -q -p no:cacheprovider --durations=40 --durations-min=2 --basetemp="$results/$name" "$@" \
        >"$results/$name.log" 2>&1 || echo "$name" >>"$results/failed"
    rm -rf "${results:?}/$name"
    cat "$results/$name.log"
}

count=$#
[ -n "${WEFT_ONLY_C:-}" ] || python pytest -n $((2 * jobs)) $(printf -- '--ignore=%s ' $timed) tests/e2e tests/fault
wait "$programs"
if [ -z "${WEFT_ONLY_C:-}" ]; then
    count=$((count + 2))
    python pytest-timed -n "$jobs" $timed
fi
failed=$(wc -l <"$results/failed")
[ "$failed" = 0 ] || echo "failed: $(tr '\n' ' ' <"$results/failed")"
echo "$((count - failed)) passed, $failed failed"
[ "$failed" = 0 ]
