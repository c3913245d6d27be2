#!/usr/bin/env bash
# Runs fuzz targets with libFuzzer, one after the other.
#   scripts/fuzz.sh [--seconds N] [TARGET…]
# Each target runs for N seconds (60 by default); without targets, all of fuzz/Cargo.toml. It starts from
# the inputs in fuzz/seeds and keeps what it finds in fuzz/corpus. A failing input is written to
# fuzz/artifacts, and the script ends with its exit code.
#
# Needs a C++ compiler (libFuzzer is built from source) and cargo, with the crates of fuzz/Cargo.lock
# downloaded or a network. It needs no nightly toolchain: RUSTC_BOOTSTRAP allows the compiler's
# coverage pass on stable. Inputs are found with coverage, without a sanitizer: the workspace has
# no unsafe code to sanitize.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60
targets=()
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
        --seconds=*) seconds=${1#*=}; shift ;;
        -*) echo "usage: scripts/fuzz.sh [--seconds N] [TARGET…]" >&2; exit 2 ;;
        *) targets+=("$1"); shift ;;
    esac
done
if ! command -v "${CXX:-c++}" >/dev/null; then
    echo "fuzz: no C++ compiler (${CXX:-c++}): libFuzzer cannot be built" >&2
    exit 2
fi
known=$(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"$|\1|p' fuzz/Cargo.toml)
[ ${#targets[@]} -gt 0 ] || mapfile -t targets <<<"$known"
for target in "${targets[@]}"; do
    if ! grep -qx -- "$target" <<<"$known"; then
        echo "fuzz: there is no target '$target'; the targets are:" $known >&2
        exit 2
    fi
done
host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/fuzz/target}
# With a target triple, build scripts and procedural macros are not instrumented.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="$flags" cargo build --locked --release \
    --manifest-path fuzz/Cargo.toml --target "$host" --bins
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    corpora=("fuzz/corpus/$target")
    [ ! -d "fuzz/seeds/$target" ] || corpora+=("fuzz/seeds/$target")
    fixtures=crates/etcd-files/tests/fixtures
    case $target in
        scenario) corpora+=(crates/core/tests/scenarios) ;;
        etcd_database) cp --update $fixtures/v3.7/snapshot.db "fuzz/corpus/$target/snapshot-v3.7" ;;
        etcd_log) cp --update $fixtures/v3.7/data/member/wal/*.wal "fuzz/corpus/$target/" ;;
    esac
    echo "fuzz: $target, $seconds seconds"
    log=$CARGO_TARGET_DIR/$target.log
    code=0
    "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -timeout=25 \
        -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="fuzz/artifacts/$target/" "${corpora[@]}" >"$log" 2>&1 || code=$?
    grep -E "^stat::(number_of_executed_units|peak_rss_mb)|^Done|SUMMARY|panicked at|Test unit written" \
        "$log" || true
    if [ "$code" -ne 0 ]; then
        echo "fuzz: $target failed (exit code $code); the whole output is in $log" >&2
        exit "$code"
    fi
done
echo "fuzz: ${#targets[@]} targets, no failure"
