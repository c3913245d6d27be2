#!/usr/bin/env bash
# Rebuilds the program of the playground page, crates/server/playground/playground.wasm. Needs the
# Rust target wasm32-wasip1: rustup target add wasm32-wasip1
set -euo pipefail
cd "$(dirname "$0")/.."
page=crates/server/playground
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --locked -p quorate-playground --profile playground --target wasm32-wasip1
cp "$target/wasm32-wasip1/playground/quorate-playground.wasm" "$page/playground.wasm"
wc -c "$page"/*
