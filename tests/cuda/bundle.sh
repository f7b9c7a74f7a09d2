#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What make gpu-bundle does behind the links: the shared libraries that a machine with nothing but
# CUDA lacks, the tests' data and the losses that the CPU has, the scripts, llm.c, the commit, and the
# size's bound.
#
#   bundle.sh BUILD BUNDLE TEST...   the tests' programs are in BUNDLE/tests already
#
# LLMC=FOLDER: llm.c's sources, for llmc.sh
set -eu
build=$1 bundle=$2
shift 2
tree=$(git ls-files -coz --exclude-standard 2>/dev/null | du -cb --files0-from=- 2>/dev/null | tail -n 1 | cut -f1)
most=$(((64 << 20) - ${tree:-0})) # 64 MiB are carried, the tree with them
rm -rf "$bundle/lib" # of a bundle before: the programs would find these, and not the system's
mkdir -p "$bundle/lib" "$bundle/tests/parity"
cp -r tests/parity/golden "$bundle/tests/parity/"
cp tests/cuda/libraries.sh "$bundle/"
cp tests/bench/gpu/*.sh tests/bench/gpu/*.py "$bundle/bench/"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
git diff --quiet HEAD 2>/dev/null || commit=$commit-dirty
echo "$commit" >"$bundle/commit"
rm -rf "$bundle/models"
if /usr/bin/python3 -c 'import pytest, numpy' 2>/dev/null; then
    WEFT_BUILD=$build WEFT_BACKEND_DIR=$build /usr/bin/python3 tests/cuda/models.py "$bundle/models"
else
    echo "SKIPPED: the bundle has no trainings: no python3-pytest and python3-numpy here"
fi

if [ -n "${LLMC:-}" ]; then
    sh tests/bench/gpu/llmc.sh "$LLMC" "$build" "$bundle/llmc"
else
    echo "the bundle has no llm.c: LLMC=FOLDER names its sources"
    rm -rf "$bundle/llmc"
fi
# Everything but what glibc, the driver and CUDA bring.
printf '%s\n' "$@" >"$bundle/tests/list"
programs=$(printf "$bundle/tests/%s\n" "$@" | sed 's/:[^/]*$//' | sort -u)
for program in "$bundle/weft-rank" "$bundle/lead-ranks" "$bundle/bench/bench_ops" $programs; do
    ldd "$program" | awk '$2 == "=>" { print $3 }'
done | sort -u | grep -v '/\(libc\|libm\|libdl\|libpthread\|librt\|ld-linux[^/]*\|libcuda\|libcublas[^/]*\|libcudnn[^/]*\|libnccl[^/]*\)\.so' |
    while read -r lib; do
        cp -L "$lib" "$bundle/lib/"
    done
strip -S "$bundle/weft-rank" "$bundle/lead-ranks" "$bundle/bench/bench_ops" $programs
size=$(du -sb "$bundle" | cut -f1)
glibc=$(for f in "$bundle/weft-rank" "$bundle/lead-ranks" "$bundle"/*.so $programs "$bundle"/lib/*; do objdump -T "$f"; done 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$bundle: $((size >> 20)) MiB, with the tree $(((size + ${tree:-0}) >> 20)); wants $glibc and CUDA; copy it and run: sh bench/lease.sh a . OUT; sh relink.sh TREE"
[ "$size" -lt "$most" ] || { echo "over the $((most >> 20)) MiB that the tree leaves of 64: name one architecture alone, CUDA_ARCHS=90"; exit 1; }
