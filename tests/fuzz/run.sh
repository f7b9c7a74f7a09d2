#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs each fuzzer for a while from its corpus; new inputs go to build/, not into the tree.
set -eu
build=$1 seconds=$2
shift 2
for f in "$@"; do
    make --no-print-directory BUILD="$build" "$build/fuzz/fuzz_$f"
    mkdir -p "$build/fuzz/new_$f"
    "$build/fuzz/fuzz_$f" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=0 \
        "$build/fuzz/new_$f" "tests/fuzz/corpus/$f"
    echo "fuzz $f: $seconds s, nothing found"
done
