#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds llm.c's trainer for a bundle, once for each SOURCES: they are no part of this project, and are
# compiled as they are, behind llmc_cuda13.h, in a copy.
#
#   llmc.sh SOURCES BUILD TO   CUDA_HOME has nvcc and its libraries; LLMC_ARCH: 90
#
# With cuDNN's attention if cudnn-frontend's include lies in a folder of that name in the sources and
# that builds, else with llm.c's own; TO/attention says which. What stands on make's command line
# takes the place of what llm.c's Makefile says: PFLAGS has its precision, NVCC_LDFLAGS its libraries.
# Of those nvidia-ml is not on every machine, and today's cudnn-frontend wants nvrtc.
set -eu
sources=$1 build=$2/llmc to=$3
here=$(cd "$(dirname "$0")" && pwd)
[ "$(cat "$to/from" 2>/dev/null)" != "$sources" ] || exit 0
rm -rf "$build" "$to"
cp -r "$sources" "$build"
mkdir -p "$to"
compile() { # 1: with cuDNN; LIBRARY...
    cudnn=$1
    shift
    make -C "$build" train_gpt2cu NO_MULTI_GPU=1 NO_USE_MPI=1 USE_CUDNN="$cudnn" NVCC="$CUDA_HOME/bin/nvcc" GPU_COMPUTE_CAPABILITY="$LLMC_ARCH" \
        PFLAGS="-DENABLE_BF16 -include $here/llmc_cuda13.h" NVCC_LDFLAGS="-L$CUDA_HOME/lib64$(printf ' -l%s' "$@")" >"$build/log" 2>&1
}
attention="its own attention"
if [ -e "$sources/cudnn-frontend/include" ] && compile 1 cublas cublasLt cudnn nvrtc; then
    attention=cuDNN
else
    compile 0 cublas cublasLt || { tail -n 20 "$build/log" && exit 1; }
fi
cp "$build/train_gpt2cu" "$to/"
echo "$attention" >"$to/attention"
echo "$sources" >"$to/from"
echo "llm.c was built, with $attention"
