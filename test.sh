#!/usr/bin/env bash
# All tests: the workspace with all features, among them upgrades with two programs, then a short hunt for
# mutants, which shows that the checkers notice wrong rules. Needs Rust (stable) and a C compiler, nothing else.
#   test.sh [--no-run]     --no-run only builds
#
# Lanes share the machine. Tests of servers mostly wait for timers and disks: they run in the background, several
# at a time, and so do the examples in the documentation. What these print appears when the other tests, which
# compute in the foreground, have ended.
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
build test --no-run
[ $# -eq 0 ] || exit 0

# The names of the test programs among these files and folders.
names_of() {
  local path
  for path in "$@"; do
    case "$path" in
      *.rs) basename "$path" .rs ;;
      *) [ ! -e "$path/main.rs" ] || basename "$path" ;;
    esac
  done | sort -u
}

work=$(mktemp -d) lanes=() failed=()

# Ends the lanes that still run.
cleanup() {
  local lane
  for lane in "${lanes[@]}"; do kill -- "-${lane%%:*}" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

# background NAME COMMAND…: runs it beside the foreground.
background() {
  set -m
  "${@:2}" >"$work/$1" 2>&1 &
  set +m
  lanes+=("$!:$1")
}

# A name that both lanes have, as `tls`, is tested with the servers, in all crates that have it.
mapfile -t servers < <(names_of crates/{cli,server}/tests/*)
mapfile -t others < <(comm -13 <(printf '%s\n' "${servers[@]}") <(names_of crates/*/tests/*))
background servers build test --no-fail-fast "${servers[@]/#/--test=}" -- --test-threads=8
background documentation build test --no-fail-fast --doc
build test --no-fail-fast --lib --bins "${others[@]/#/--test=}" || failed+=(others)
"$target/debug/quorate-sim" mutants --short || failed+=(mutants)
for lane in "${lanes[@]}"; do
  wait "${lane%%:*}" || failed+=("${lane#*:}")
  printf '\n== tests in the background: %s\n' "${lane#*:}"
  cat "$work/${lane#*:}"
done
lanes=()
[ ${#failed[@]} -eq 0 ] || { echo "tests failed: ${failed[*]}"; exit 1; }
