#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All-reduce on 2 ranks of this host: ours, OpenMPI as it comes and OpenMPI with the best of the
# settings below, in one run, taking turns so that a busy machine is busy for all. The table gives
# the median of ROUNDS medians in microseconds, and ours against each. The last line is the
# machine's limit: the same additions in the same run, in a plain loop over private memory.
#
#   allreduce.sh BUILD [ROUNDS]
set -eu
build=$1 rounds=${2:-5}
here=$(dirname "$0")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mpicc -O2 -Wall -I"$here/../.." -o "$out/mpi" "$here/mpi_allreduce.c"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

mpi() {
    name=$1
    shift
    mpirun -np 2 --oversubscribe --map-by core --bind-to core "$@" "$out/mpi" >>"$out/$name" 2>>"$out/log" || {
        echo "mpirun $* failed:" >&2
        tail -3 "$out/log" >&2
        exit 1
    }
}

# tuned ALGORITHM:SEGMENT:COPY; algorithms of the tuned component: 3 recursive doubling, 4 ring,
# 5 segmented ring, 6 Rabenseifner.
tuned() {
    mpi "tuned-$1" --mca coll ^han,adapt --mca coll_tuned_use_dynamic_rules 1 \
        --mca coll_tuned_allreduce_algorithm "$(echo "$1" | cut -d: -f1)" \
        --mca coll_tuned_allreduce_algorithm_segmentsize "$(echo "$1" | cut -d: -f2)" \
        --mca btl_vader_single_copy_mechanism "$(echo "$1" | cut -d: -f3)" --mca mpi_yield_when_idle 0
}

# The median of a file's values for a size.
of() {
    awk -v b="$2" '$1 == b {print $2}' "$out/$1" | sort -g |
        awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

# First every setting once, to find the best for each size; then the measurement.
for copy in cma emulated none; do
    for algorithm in 3:0 4:0 5:1048576 6:0; do
        tuned $algorithm:$copy
    done
done
for bytes in 4096 1048576 67108864; do
    for f in "$out"/tuned-*; do
        echo "$(of "$(basename "$f")" $bytes) ${f##*tuned-}"
    done | sort -g | head -1 | sed "s/^/$bytes /"
done >"$out/best"
rm "$out"/tuned-*

i=0
while [ "$i" -lt "$rounds" ]; do
    for setting in $(awk '{print $3}' "$out/best" | sort -u); do
        "$build/tests/bench/bench_allreduce" 2 >>"$out/ours"
        tuned "$setting"
    done
    mpi plain
    "$build/tests/bench/bench_allreduce" limit >>"$out/limit"
    i=$((i + 1))
done

printf '%10s %12s %12s %12s %8s %8s  %s\n' bytes 'ours us' 'plain us' 'tuned us' plain tuned 'best tuning'
while read -r bytes _ setting; do
    awk -v b="$bytes" -v o="$(of ours "$bytes")" -v p="$(of plain "$bytes")" \
        -v t="$(of "tuned-$setting" "$bytes")" -v n="$setting" 'BEGIN {
        printf "%10d %12.2f %12.2f %12.2f %7.1fx %7.1fx  %s\n", b, o, p, t, p / o, t / o, n }'
done <"$out/best"
awk -v o="$(of ours 67108864)" -v l="$(of limit 67108864)" 'BEGIN {
    printf "%10d %12.2f us: a plain loop of additions in place; ours takes %.2fx\n", 67108864, l, o / l }'
