#!/usr/bin/env bash
# Runs loads of crates/server/examples/load against a new cluster of three members on this machine.
#   scripts/load.sh quorate|etcd PROGRAM LOAD… [-- FLAGS OF THE SERVER…]
# PROGRAM is a built `quorate` or `etcd`. Each load gets its own cluster, in a directory of TMPDIR that
# is deleted at the end. QUORATE_LOAD names a built load program. docs/reliability.md has the results.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
kind=$1 program=$2
shift 2
loads=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    loads+=("$1")
    shift
done
[ $# -eq 0 ] || shift
if [ -z "${QUORATE_LOAD:-}" ]; then
    cargo build --locked --release -p quorate-server --example load
    QUORATE_LOAD=$target/release/examples/load
fi
base=${QUORATE_LOAD_PORT:-23790}
pids=()
stop() {
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
    pids=()
    rm -rf "${directory:?}"
}
for load in "${loads[@]}"; do
    directory=$(mktemp -d)
    trap stop EXIT
    cluster= endpoints=
    for n in 0 1 2; do
        cluster+=${cluster:+,}m$n=http://127.0.0.1:$((base + 10 * n + 1))
        endpoints+=${endpoints:+,}127.0.0.1:$((base + 10 * n))
    done
    for n in 0 1 2; do
        client=http://127.0.0.1:$((base + 10 * n)) peer=http://127.0.0.1:$((base + 10 * n + 1))
        start=("$program")
        [ "$kind" != quorate ] || start+=(server)
        "${start[@]}" --name "m$n" --data-dir "$directory/m$n" --listen-client-urls "$client" \
            --advertise-client-urls "$client" --listen-peer-urls "$peer" \
            --initial-advertise-peer-urls "$peer" --initial-cluster "$cluster" \
            --quota-backend-bytes 8589934592 "$@" >"$directory/m$n.log" 2>&1 &
        pids+=($!)
        disown
    done
    for n in 0 1 2; do
        until grep -q "ready to serve client requests" "$directory/m$n.log"; do
            kill -0 "${pids[$n]}" || { tail -n 5 "$directory/m$n.log" >&2; exit 1; }
            sleep 0.2
        done
    done
    processes=$(IFS=,; echo "${pids[*]}")
    echo -n "$kind "
    "$QUORATE_LOAD" "$load" "$endpoints" "$processes" || true
    echo "$kind $load: $(du -sm "$directory"/m? | cut -f1 | tr '\n' ' ')MiB on disk (each member)," \
        "resident $(for pid in "${pids[@]}"; do awk '/VmRSS/ { printf "%d ", $2 / 1024 }' "/proc/$pid/status"; done)MiB"
    stop
done
