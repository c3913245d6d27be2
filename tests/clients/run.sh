#!/usr/bin/env bash
# Runs clients of other languages against a Quorate server:
#
#   tests/clients/run.sh            all of them
#   tests/clients/run.sh etcd3gw    one
#
# Each gets a new server, and installs what it needs into a temporary directory. A client whose
# language is not installed, or whose packages cannot be downloaded, is skipped with the reason.
# QUORATE names the binary; without it, one is built.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
server=
passed=() failed=() skipped=()

stop_server() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null
        wait "$server" 2>/dev/null
        server=
    fi
}
trap 'stop_server; chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT

if [ -z "${QUORATE:-}" ]; then
    (cd "$root" && cargo build --quiet --package quorate-cli --bin quorate) || exit 1
    QUORATE=$root/target/debug/quorate
fi

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 20000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# Starts a server, and sets ENDPOINT to its host and port.
start_server() {
    local client peer
    client=$(free_port) peer=$(free_port)
    export ENDPOINT=127.0.0.1:$client
    "$QUORATE" server --data-dir "$work/data-$1" --listen-client-urls "http://$ENDPOINT" \
        --advertise-client-urls "http://$ENDPOINT" --listen-peer-urls "http://127.0.0.1:$peer" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --bcrypt-cost 4 \
        --initial-cluster "default=http://127.0.0.1:$peer" >"$work/server-$1.log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$client") 2>/dev/null &&
            grep -q 'ready to serve client requests' "$work/server-$1.log"; then
            return 0
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/server-$1.log"
    return 1
}

# Runs a client: its name, the command that installs it, and the command that runs it.
run() {
    local name=$1 install=$2 command=$3
    if [ "${#wanted[@]}" -gt 0 ] && [[ ! " ${wanted[*]} " == *" $name "* ]]; then
        return
    fi
    if ! (eval "$install") >"$work/install-$name.log" 2>&1; then
        skipped+=("$name: $(tail -n 1 "$work/install-$name.log")")
        return
    fi
    if start_server "$name" && (eval "$command") >"$work/run-$name.log" 2>&1; then
        passed+=("$name")
    else
        failed+=("$name")
        sed "s/^/  $name: /" "$work/run-$name.log"
    fi
    stop_server
}

need() {
    command -v "$1" >/dev/null || { echo "$1 is not installed"; return 1; }
}

python_client() {
    need python3 && python3 -m venv "$work/venv-$1" &&
        "$work/venv-$1/bin/pip" install --quiet --disable-pip-version-check "$@"
}

node_client() {
    need npm && mkdir -p "$work/node" && cp "$here/node/"*.js "$work/node/" && cd "$work/node" &&
        npm install --silent --no-audit --no-fund etcd3@1
}

go_client() {
    need go && mkdir -p "$work/go" && cp "$here/go/"* "$work/go/" && cd "$work/go" &&
        mv go.mod.txt go.mod && GOFLAGS=-mod=mod go build -o client .
}

wanted=("$@")
run etcd3gw 'python_client etcd3gw' '"$work/venv-etcd3gw/bin/python" "$here/python/etcd3gw_client.py"'
run aetcd 'python_client aetcd' '"$work/venv-aetcd/bin/python" "$here/python/aetcd_client.py"'
run etcd3 node_client 'cd "$work/node" && node etcd3_client.js'
run clientv3 go_client '"$work/go/client"'

for name in "${passed[@]+"${passed[@]}"}"; do echo "passed: $name"; done
for name in "${skipped[@]+"${skipped[@]}"}"; do echo "SKIPPED: $name"; done
for name in "${failed[@]+"${failed[@]}"}"; do echo "FAILED: $name"; done
[ "${#failed[@]}" -eq 0 ]
