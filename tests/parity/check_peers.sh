#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make check-peers: weft beside JAX, transformers and safetensors, live. In a pinned environment from PyPI (made
# once in BUILD/peers; $PYTHON is the interpreter, 3.11 or later, default python3):
#   1 the goldens are made again and compared with the committed ones
#   2 the parity test runs on the new ones; so do export and import, both ways, on folders that transformers saves,
#     and what their models write and how they score a text; tokens are chosen by transformers' rules
#   3 two ranks train to a checkpoint; weft verifies it, the safetensors package opens it, and it
#     holds what optax got
#   4 a tokenizer is learned: the merges are those of `tokenizers`
#   5 20 MB of texts for each shape of tests/unit/tokenizers: the ids are those of `tokenizers`, and the text of them
#   6 the events of a job that was resumed: one curve for TensorBoard's loaders, in Python and Rust, and for tbparse
#   7 deploy/sinks: a real MLflow server and the package of Weights & Biases hold one curve of a job that was resumed
#   8 what `weft render` and deploy/kubernetes hold is valid for Kubernetes, JobSet and Kubeflow
set -eu
build=$(cd "${1:-build}" && pwd)
here=tests/parity
peers=$build/peers
python=$peers/bin/python

if ! cmp -s $here/requirements.txt "$peers/requirements.txt"; then
    echo "making $peers from PyPI"
    rm -rf "$peers"
    "${PYTHON:-python3}" -m venv "$peers"
    "$peers/bin/pip" install -q --disable-pip-version-check -r $here/requirements.txt
    cp $here/requirements.txt "$peers/requirements.txt"
fi

scratch=$(mktemp -d "$build/peers-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export JAX_PLATFORMS=cpu WEFT_BACKEND_DIR="$build"

echo "1 goldens"
"$python" $here/jax_mlp.py "$scratch/golden"
"$python" $here/jax_mlp.py --compare "$scratch/golden" $here/golden
"$python" $here/jax_decoder.py "$scratch/golden"
"$python" $here/jax_decoder.py --compare "$scratch/golden" $here/golden
"$python" $here/jax_vae.py "$scratch/golden"
"$python" $here/jax_vae.py --compare "$scratch/golden" $here/golden
"$python" $here/jax_jaxformer.py "$scratch/golden"
"$python" $here/jax_jaxformer.py --compare "$scratch/golden" $here/golden
"$python" $here/transformers_models.py "$scratch/golden"
"$python" $here/transformers_models.py --compare "$scratch/golden" $here/golden

"$python" $here/transformers_folders.py "$scratch/folders"

echo "2 parity"
WEFT_GOLDEN="$scratch/golden" "$build/tests/parity/test_jax" >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
tail -n 1 "$scratch/log"
WEFT_FOLDERS="$scratch/folders" "$build/tests/unit/weights" --group test_weights_folders >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
"$python" $here/transformers_folders.py --check "$scratch/folders" "$build/weft"
"$python" $here/transformers_text.py "$scratch/folders" "$build"

echo "3 checkpoint"
"$python" $here/jax_mlp.py --run "$scratch/run"
timeout 120 "$build/tests/lead-ranks" "$scratch/run/state" "$scratch/run/job.yaml" \
    >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
commit=$(find "$scratch/run/ckpt" -name COMMIT)
[ -n "$commit" ] || {
    echo "the run left no checkpoint in $scratch/run/ckpt"
    exit 1
}
for c in $commit; do
    "$build/weft" ckpt verify "$(dirname "$(dirname "$c")")"
    "$python" $here/open_checkpoint.py "$(dirname "$c")" "$scratch/run/expect.safetensors"
done

echo "4 learning a tokenizer"
"$python" $here/train_tokenizer.py "$build/weft" "$scratch/train"

echo "5 tokenizers"
RUST_BACKTRACE=0 "$python" $here/tokenizers_texts.py "$build/tests/tokenize"

echo "6 events"
"$python" $here/tensorboard_sink.py "$build" "$scratch/events"

echo "7 sinks"
"$python" $here/experiment_sinks.py "$scratch/sinks"

echo "8 manifests"
"$python" $here/manifests.py "$build/weft" $(command -v kubectl || true)
