#!/usr/bin/env bash
# Runs etcd's own end-to-end tests against a Quorate server:
#
#   tests/clients/etcd-suite.sh                     all of them
#   tests/clients/etcd-suite.sh common '^TestKV'    one suite, the tests that match
#
# The tests, etcdctl and etcdutl come from etcd's Go modules; the program that the tests start as
# `etcd` is ours. etcd-suite.txt lists the tests that are not run, each with its reason. Any other
# test that fails is run again alone, since many of the tests allow a step only a few seconds, and
# fails the run if it fails twice.
#
# QUORATE names the binary; without it, one is built. ETCD_VERSION is the release of the tests.
# WORK names a directory to keep; without it, a temporary one is used.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=${ETCD_VERSION:-v3.7.3}
wanted_suite=${1:-} wanted_tests=${2:-.}
work=${WORK:-$(mktemp -d)}
if [ -z "${WORK:-}" ]; then
    trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
fi
source=$work/etcd-$version
mkdir -p "$work"

for program in go curl; do
    command -v "$program" >/dev/null || { echo "SKIPPED: $program is not installed"; exit 0; }
done
if [ -z "${QUORATE:-}" ]; then
    (cd "$root" && cargo build --quiet --release --package quorate-cli --bin quorate) || exit 1
    QUORATE=$root/target/release/quorate
fi

# Puts the modules next to each other, as in etcd's repository, whose paths the tests expect.
prepare() {
    local module place directory
    [ -e "$source/ready" ] && return
    mkdir -p "$source/bin" "$source/client" "$work/empty"
    for module in api client/pkg client etcdctl etcdutl pkg server tests; do
        directory=$(cd "$work/empty" && go mod download -json "go.etcd.io/etcd/$module/v3@$version" |
            sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        [ -n "$directory" ] || { echo "cannot download go.etcd.io/etcd/$module/v3@$version"; return 1; }
        place=$module
        [ "$module" = client ] && place=client/v3
        rm -rf "${source:?}/$place" && cp -r "$directory" "$source/$place" || return 1
        chmod -R u+w "$source/$place"
        sed -i '/^toolchain /d' "$source/$place/go.mod"
    done
    # Used only by tests that start a server in their own process.
    sed -i '/etcd\/cache\/v3/d' "$source/tests/go.mod"
    export GOFLAGS='-mod=mod -buildvcs=false'
    for module in etcdctl etcdutl; do
        (cd "$source/$module" && go build -o "../bin/$module" .) || return 1
    done
    for module in common e2e; do
        (cd "$source/tests" && go test -c -tags e2e -o "$source/bin/$module.test" "./$module") || return 1
    done
    touch "$source/ready"
}

# Why a test is not run; nothing for one that is.
reason_of() {
    sed -n "s|^$1/$2  *||p" "$here/etcd-suite.txt"
}

# The pattern of the parts of a test that are not run.
parts_left_out() {
    sed -n "s|^$1/\($2/[^ ]*\)  *.*|^\1\$|p" "$here/etcd-suite.txt" | sed 's|/|$/^|g' | paste -s -d '|'
}

run_test() {
    (cd "$source/tests/$1" && timeout -k 10 300 "$source/bin/$1.test" -test.run "^$2\$" -test.v \
        -test.skip "$(parts_left_out "$1" "$2")" -test.timeout 290s) >"$work/logs/$1-$2.log" 2>&1
}

if ! prepare >"$work/prepare.log" 2>&1; then
    echo "SKIPPED: $(tail -n 1 "$work/prepare.log")"
    exit 0
fi
cp "$QUORATE" "$source/bin/etcd" || exit 1
mkdir -p "$work/logs"
# Passwords are not what these tests are about.
export ETCD_BCRYPT_COST=4

passed=0 skipped=0 listed=0 failed=()
for suite in common e2e; do
    [ -z "$wanted_suite" ] || [ "$wanted_suite" = "$suite" ] || continue
    for test in $(cd "$source/tests/$suite" && "$source/bin/$suite.test" -test.list . | grep '^Test' | grep -E "$wanted_tests"); do
        if [ -n "$(reason_of "$suite" "$test")" ]; then
            listed=$((listed + 1))
        elif run_test "$suite" "$test" || run_test "$suite" "$test"; then
            if grep -q -e "^--- SKIP: $test " "$work/logs/$suite-$test.log"; then
                skipped=$((skipped + 1))
            else
                passed=$((passed + 1))
            fi
        else
            failed+=("$suite/$test")
            echo "FAILED: $suite/$test"
            grep -v goroutine "$work/logs/$suite-$test.log" | grep -A 4 -e 'Error:' | head -n 20
        fi
    done
done
echo "etcd $version: $passed passed, $skipped skipped themselves, $listed are listed in etcd-suite.txt, ${#failed[@]} failed"
[ "${#failed[@]}" -eq 0 ]
