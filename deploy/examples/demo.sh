#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make demo: installs what is missing, builds, unpacks Fashion-MNIST, trains the example on two
# rank processes. Run again it says that the job is finished, and its result; NEW=1 starts over.
set -eu
make=$1 build=$2
sh deploy/deps.sh demo
$make --no-print-directory -j"$(nproc)" BUILD="$build" all
mkdir -p build/data
for f in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
    [ -f "build/data/$f" ] && continue
    gunzip -c "/usr/share/datasets/fashion-mnist/$f.gz" >"build/data/$f.part"
    mv "build/data/$f.part" "build/data/$f"
done
"$build/weft" run deploy/examples/fashion-mnist.yaml ${NEW:+--new}
cat <<NEXT
next         $build/weft run deploy/examples/fashion-mnist.yaml -s train.steps=4000    trains it longer
             $build/weft plan deploy/examples/fashion-mnist.yaml                       memory, collectives
             make demo-gpt                                                             text to a small GPT, and out
             README.md, "From your own data to a trained model"
NEXT
