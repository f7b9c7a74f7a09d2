#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make demo-gpt: from text to a model that transformers opens. Learns a tokenizer from the licences that every Debian
# has, trains a small GPT of them on two ranks, kills one of these on the way, evaluates, writes, and exports. Run again
# it continues where it was; NEW=1 starts over.
set -eu
make=$1 build=$2
sh deploy/deps.sh demo
$make --no-print-directory -j"$(nproc)" BUILD="$build" all
weft=$build/weft
at=build/demo-gpt
texts='/usr/share/common-licenses/*'
job=deploy/examples/gpt.yaml
prompt='The licensor grants'

show() { # the command, as somebody would type it
    printf '\n$'
    for word in "$@"; do
        case $word in *[\ \*]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    echo
}

try() {
    show "$@"
    "$@"
}

[ -z "${NEW:-}" ] || rm -rf "$at"
mkdir -p "$at"
[ -f $at/tokenizer.json ] || try "$weft" data train-tokenizer "$texts" --vocab 1024 --out $at/tokenizer.json
try "$weft" data prepare "$texts" --tokenizer $at/tokenizer.json --val-fraction 0.1 --out $at/tokens

# The first rank that is seen after a checkpoint gets kill -9, once.
show "$weft" run $job ${NEW:+--new}
"$weft" run $job ${NEW:+--new} &
run=$!
trap 'kill $run 2>/dev/null || true' EXIT
while kill -0 $run 2>/dev/null && [ ! -f $at/killed ]; do
    sleep 0.2
    set -- $at/ckpt/*/step-*/COMMIT
    [ -f "$1" ] || continue
    for rank in $(cat /proc/$run/task/*/children 2>/dev/null); do
        [ "$(cat /proc/"$rank"/comm 2>/dev/null)" = weft-rank ] || continue
        kill -9 "$rank" && touch $at/killed && printf '\n$ kill -9 %s    # one of the two ranks\n\n' "$rank"
        break
    done
done
wait $run
trap - EXIT

ckpt=$(echo $at/ckpt/gpt-*)
try "$weft" eval "$ckpt" --data "$at/tokens/val-*.bin"
try "$weft" generate "$ckpt" --tokenizer $at/tokenizer.json --prompt "$prompt" --tokens 60 --temperature 0.7
rm -rf $at/hf
try "$weft" export "$ckpt" $at/hf
if [ -t 0 ] && [ -t 1 ]; then
    printf '\nBegin a sentence and press Enter; an empty line ends.\n'
    try "$weft" generate "$ckpt" --tokenizer $at/tokenizer.json --tokens 40 --temperature 0.7
fi
cat <<NEXT

next         $weft why gpt --coordinator deploy/examples/.weft/gpt    its history: the killed rank, what it cost
             $weft run $job -s train.steps=1000        trains it longer
             AutoModelForCausalLM.from_pretrained("$at/hf")    opens it in transformers
             README.md, "From your own data to a trained model"
NEXT
