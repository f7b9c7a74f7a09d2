#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building, testing and the demo need and this machine lacks.
# Says what it installs; uses sudo only when not root. PACKAGES_ONLY=1 prints the list.
set -eu
build="gcc libc6-dev make pkg-config protobuf-c-compiler libprotobuf-c-dev libyaml-dev libxxhash-dev libdnnl-dev libgrpc-dev libsqlite3-dev libmicrohttpd-dev libgnutls28-dev libssl-dev"
check="clang clang-format clang-tidy libclang-rt-14-dev libcmocka-dev python3 python3-venv python3-pytest python3-numpy xfsprogs iproute2 util-linux strace gdb prometheus golang-go golang-google-grpc-dev curl nftables openssl"
data="dataset-fashion-mnist gzip"
[ "${PACKAGES_ONLY:-}" ] && { echo "$build $check $data"; exit 0; }
missing=""
for p in $build $check $data; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
echo "weft: installing$missing"
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "weft: not root and no sudo: install these by hand" >&2; exit 1; }
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
