#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of 8, 64 and 512 MiB over 1 and 2 ranks beside raw writes; see bench_ckpt_write.c.
#
#   ckpt_write.sh BUILD [RUNS]
#
# CKPT_DIR says on which file system; default: the build's.
set -eu
build=$1 runs=${2:-9}
dir=$(mktemp -d "${CKPT_DIR:-$build}/ckpt-write-XXXXXX")
trap 'rm -rf "$dir"' EXIT
echo "medians of $runs runs; save: staged, written, hashed, synced, committed, all of it"
echo "file system: $(stat -f -c %T "$dir"), $(df -h --output=source,avail "$dir" | tail -n 1)"
for mib in 8 64 512; do
    for ranks in 1 2; do
        "$build/tests/bench/bench_ckpt_write" "$dir/$mib-$ranks" "$runs" "$mib" "$ranks"
        rm -rf "${dir:?}/$mib-$ranks"
    done
done
