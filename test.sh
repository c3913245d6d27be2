#!/usr/bin/env bash
# All tests: the workspace with all features, among them upgrades with two programs, then a short hunt for
# mutants, which shows that the checkers notice wrong rules. Needs Rust (stable) and a C compiler, nothing else.
#   test.sh [--no-run]     --no-run only builds
set -euo pipefail
cd "$(dirname "$0")"
case "$*" in
  '' | --no-run) ;;
  *) echo "usage: test.sh [--no-run]" >&2; exit 2 ;;
esac
target=${CARGO_TARGET_DIR:-$PWD/target}
# Every build below has the same features and considers the dependencies of tests (as `--example` does),
# so that no dependency is built twice.
features=quorate-core/serde,quorate/serde,quorate/typed,quorate-cli/etcd-client
build() { cargo "$1" --workspace --locked --features "$features" "${@:2}"; }

# The build script of the crate `etcd-client`, our second client, calls protoc. An example of ours
# implements as much of it as is needed.
build build --example protoc
export PROTOC="${PROTOC:-$target/debug/examples/protoc}"
# The second program of the test `upgrade`, see scripts/upgrade.sh. The build after it replaces `quorate`.
build build --features quorate-cli/next-version-for-tests --bin quorate --example protoc
cp "$target/debug/quorate" "$target/debug/quorate-next"
export QUORATE_NEXT="$target/debug/quorate-next"
build build --bins --example protoc
if [ $# -gt 0 ]; then
  build test --no-run
  exit
fi
build test
"$target/debug/quorate-sim" mutants --short
