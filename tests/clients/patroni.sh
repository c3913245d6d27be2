#!/usr/bin/env bash
# Patroni with PostgreSQL on three members: it elects a primary, keeps it while a member is killed,
# and promotes the replica when the primary is killed. No row may be lost.
#
#   tests/clients/patroni.sh [PROGRAM]    PROGRAM: target/release/quorate, or an etcd to compare with
#
# Needs PostgreSQL's server and python3 with venv; Patroni is installed into a temporary directory.
# Where something is missing, the script says so and exits with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-target/release/quorate}")
skip() { echo "patroni: skipped: $*"; exit 0; }
fail() { echo "patroni: FAILED: $*" >&2; for log in "$work"/p?.log "$work"/m?.log; do echo "-- ${log##*/}"; tail -n 12 "$log"; done >&2 || true; exit 1; }

[[ -x $program ]] || skip "no program at ${1:-target/release/quorate}; run: cargo build --release -p quorate-cli"
initdb=$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1 || command -v initdb || true)
[[ -n $initdb ]] || skip "PostgreSQL's server is not installed (Debian: postgresql)"
postgres_bin=$(dirname "$(realpath "$initdb")")
command -v python3 >/dev/null || skip "python3 is not installed"

work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true; done
  # Patroni's PostgreSQL is in a session of its own.
  pkill -9 -f -- "-D $work/" || true
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work"
# PostgreSQL refuses to run as root.
as_user=()
if [[ $(id -u) = 0 ]]; then
  id postgres >/dev/null 2>&1 || skip "there is no user postgres"
  as_user=(runuser -u postgres --)
fi

# A python3 that this user can run, too: one in the home directory of root is not.
python=
for candidate in $(type -a -P python3); do
  real=$("$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))')
  if "${as_user[@]}" test -x "$real"; then python=$candidate; break; fi
done
[[ -n $python ]] || skip "the user postgres can run no python3"
"$python" -m venv "$work/venv" >/dev/null 2>&1 || skip "python3 cannot make a virtual environment (Debian: python3-venv)"
"$work/venv/bin/pip" -q install 'patroni[etcd3]' 'psycopg[binary]' >"$work/pip.log" 2>&1 ||
  skip "Patroni could not be installed: $(tail -n 1 "$work/pip.log")"

# Ten free ports.
mapfile -t ports < <(python3 - <<'P'
import socket
sockets = [socket.socket() for _ in range(10)]
for s in sockets: s.bind(("127.0.0.1", 0))
print("\n".join(str(s.getsockname()[1]) for s in sockets))
P
)
client=("${ports[@]:0:3}") peer=("${ports[@]:3:3}") database=("${ports[@]:6:2}") rest=("${ports[@]:8:2}")
cluster="m0=http://127.0.0.1:${peer[0]},m1=http://127.0.0.1:${peer[1]},m2=http://127.0.0.1:${peer[2]}"
server=("$program")
[[ $(basename "$program") == quorate* ]] && server+=(server)

start_member() {
  local n=$1
  setsid "${server[@]}" --name "m$n" --data-dir "$work/m$n" \
    --listen-client-urls "http://127.0.0.1:${client[n]}" --advertise-client-urls "http://127.0.0.1:${client[n]}" \
    --listen-peer-urls "http://127.0.0.1:${peer[n]}" --initial-advertise-peer-urls "http://127.0.0.1:${peer[n]}" \
    --initial-cluster "$cluster" --initial-cluster-state new >>"$work/m$n.log" 2>&1 &
  member[n]=$!
  disown
  pids+=($!)
}

start_patroni() {
  local n=$1
  PATH="$postgres_bin:$PATH" setsid "${as_user[@]}" "$work/venv/bin/patroni" "$work/p$n/patroni.yml" >>"$work/p$n.log" 2>&1 &
  patroni[n]=$!
  disown
  pids+=($!)
}

configure_patroni() {
  local n=$1
  mkdir -p "$work/p$n"
  cat >"$work/p$n/patroni.yml" <<Y
scope: demo
name: p$n
restapi: {listen: "127.0.0.1:${rest[n]}", connect_address: "127.0.0.1:${rest[n]}"}
etcd3:
  hosts: ["127.0.0.1:${client[0]}", "127.0.0.1:${client[1]}", "127.0.0.1:${client[2]}"]
bootstrap:
  dcs: {ttl: 20, loop_wait: 2, retry_timeout: 5, synchronous_mode: true, postgresql: {use_pg_rewind: true}}
  initdb: [{encoding: UTF8}, data-checksums]
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: "127.0.0.1:${database[n]}"
  connect_address: "127.0.0.1:${database[n]}"
  data_dir: "$work/p$n/data"
  bin_dir: "$postgres_bin"
  pgpass: "$work/p$n/pgpass"
  authentication:
    superuser: {username: postgres, password: postgres}
    replication: {username: replicator, password: replicator}
    rewind: {username: rewind, password: rewind}
  parameters: {unix_socket_directories: "$work/p$n", fsync: "off", shared_buffers: 16MB}
Y
  if [[ ${#as_user[@]} -gt 0 ]]; then chown -R postgres "$work/p$n"; fi
}

sql() { "$postgres_bin/psql" -X -A -t -q -h 127.0.0.1 -p "${database[$1]}" -U postgres -c "$2" 2>/dev/null; }
is_primary() { [[ $(sql "$1" 'select pg_is_in_recovery()' || true) = f ]]; }
primary() {
  for n in 0 1; do if is_primary "$n"; then echo "$n"; return 0; fi; done
  return 1
}
wait_for() {
  local what=$1 deadline=$((SECONDS + ${limit:-90}))
  shift
  until "$@" >/dev/null; do
    ((SECONDS < deadline)) || fail "timed out waiting until $what"
    sleep 0.5
  done
}
streaming() { [[ $(sql "$1" "select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')") = 1 ]]; }
healthy() { curl -fsS "http://127.0.0.1:${client[$1]}/health" 2>/dev/null | grep -q '"true"'; }

for n in 0 1 2; do start_member "$n"; done
for n in 0 1 2; do wait_for "member m$n is healthy" healthy "$n"; done
configure_patroni 0
configure_patroni 1
start_patroni 0
wait_for "a primary is elected" is_primary 0
start_patroni 1
wait_for "the replica follows synchronously" streaming 0
echo "patroni: p0 is the primary, p1 its synchronous replica"
sql 0 "create table t (n int primary key)" || fail "the table could not be created"

# A writer on the primary while each member of the store is killed and started again in turn.
rows=0
write() { sql "$1" "insert into t values ($rows)" || return 1; rows=$((rows + 1)); }
for n in 0 1 2; do
  kill -9 "${member[n]}"
  for _ in $(seq 12); do
    write 0 || fail "the primary refused a write while m$n was down"
    sleep 1
  done
  is_primary 0 || fail "the primary was demoted while only m$n was down"
  start_member "$n"
  wait_for "member m$n is back" healthy "$n"
done
echo "patroni: each of three members was killed for 12 s; the primary stayed and took $rows writes"

kill -9 -- "-${patroni[0]}"
pkill -9 -f "^$postgres_bin/postgres -D $work/p0/data" || true
started=$SECONDS
wait_for "the replica is promoted" is_primary 1
echo "patroni: the replica was promoted $((SECONDS - started)) s after the primary was killed (ttl 20 s)"
[[ $(sql 1 "select count(*) from t") = "$rows" ]] || fail "rows were lost"
wait_for "the new primary accepts writes" write 1
start_patroni 0
wait_for "the old primary follows the new one" streaming 1
[[ $(primary) = 1 ]] || fail "p1 is not the primary"
[[ $(sql 0 "select count(*) from t") = "$rows" ]] || fail "the old primary lacks rows"
echo "patroni: ok, $rows rows, none lost"
