#!/usr/bin/env bash
# Runs h2spec, a conformance suite for HTTP/2, against a Quorate server:
#
#   tests/clients/h2spec.sh
#
# Needs Go, with which it builds h2spec in a temporary directory, and says so if it is missing. QUORATE
# names the binary; without it, one is built. Cases with a second frame on a stream race with the response
# to the first one, so the suite runs three times. An invalid preface is not a failure: the port also serves
# HTTP/1, and answers in HTTP/1.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
command -v go >/dev/null || { echo "h2spec: skipped: Go is not installed"; exit 0; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; chmod -R u+w "$work"; rm -rf "$work"' EXIT
if [ -z "${QUORATE:-}" ]; then
    (cd "$root" && cargo build --quiet --package quorate-cli --bin quorate)
    QUORATE=$root/target/debug/quorate
fi
GOBIN=$work/bin GOFLAGS=-modcacherw go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible 2>"$work/go.log" || {
    echo "h2spec: skipped: it cannot be built: $(tail -n 1 "$work/go.log")"
    exit 0
}
port=$((20000 + RANDOM % 10000))
url=http://127.0.0.1:$port
"$QUORATE" server --name one --data-dir "$work/data" --listen-client-urls "$url" \
    --advertise-client-urls "$url" --listen-peer-urls "http://127.0.0.1:$((port + 1))" \
    --initial-cluster "one=http://127.0.0.1:$((port + 1))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" >"$work/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
    "$QUORATE" get --endpoints "$url" none >/dev/null 2>&1 && break
    sleep 0.2
done
# A case that fails in all of three runs has failed.
for run in 1 2 3; do
    "$work/bin/h2spec" --host 127.0.0.1 --port "$port" --path /v3/kv/range --timeout 10 >"$work/report" || true
    tail -n 1 "$work/report"
    grep -q ' passed' "$work/report" || { cat "$work/report"; exit 1; }
    sed -n '/^Failures:/,$p' "$work/report" | sed -n 's/^ *× [0-9]*: //p' | sort -u >"$work/failed.$run"
done
failed=$(comm -12 "$work/failed.1" "$work/failed.2" | comm -12 - "$work/failed.3")
unexpected=$(grep -vxF 'Sends invalid connection preface' <<<"$failed" | grep -v '^$' || true)
if [ -n "$unexpected" ]; then
    sed -n '/^Failures:/,$p' "$work/report"
    echo "h2spec: failed: $unexpected"
    exit 1
fi
echo "h2spec: passed"
