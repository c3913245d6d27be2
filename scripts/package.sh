#!/usr/bin/env bash
# Packages every published crate, in the order in which they are released, and compiles each
# one from its package, so that a missing file or an unpublished dependency is found before a
# release. Writes to target/package only.
set -euo pipefail
cd "$(dirname "$0")/.."
dirty=()
[ -z "$(git status --porcelain 2>/dev/null)" ] || dirty=(--allow-dirty)
arguments=()
for package in quorate-core quorate-etcd-files quorate-http2 quorate-storage quorate-proto quorate quorate-kv quorate-sim quorate-server quorate-cli; do
  arguments+=(-p "$package")
done
cargo package --locked "${dirty[@]}" "$@" "${arguments[@]}"
