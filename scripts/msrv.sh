#!/usr/bin/env bash
# Checks that `rust-version` is true: no dependency needs a newer Rust, and, where that
# toolchain is installed, every package compiles with the version that it declares.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --locked -p xtask -- msrv
check() { # VERSION PACKAGE…
  local version=$1
  shift
  if ! rustup run "$version" cargo --version >/dev/null 2>&1; then
    echo "msrv: Rust $version is not installed, not built with it; run: rustup toolchain install $version"
    return
  fi
  local arguments=()
  for package in "$@"; do arguments+=(-p "$package"); done
  CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/msrv" cargo "+$version" check --locked "${arguments[@]}"
}
check 1.88 quorate-core quorate-http2 quorate-storage quorate quorate-proto quorate-sim
check 1.90 quorate-etcd-files quorate-kv quorate-server quorate-cli
