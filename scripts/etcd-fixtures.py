#!/usr/bin/env python3
"""Makes the files of a real etcd that tests read, and records what etcd answers from them.

    scripts/etcd-fixtures.py ETCD ETCDCTL ETCDUTL DIRECTORY

ETCDUTL may be the etcdctl of etcd 3.4, which has the same commands. DIRECTORY then has:

    snapshot.db           of `etcdctl snapshot save`
    snapshot.json         what `snapshot status` says, and what an etcd answers that was
                          restored from it
    data/member/snap/db   the database of a member at some entry of its log
    data/member/wal/      its log, with every kind of request after that entry; cut behind the
                          last record, so that it is small
    data.json             what an etcd answers that was started with this directory
"""

import base64
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = ("root", "rootpw")


def text(value):
    return base64.b64encode(value.encode()).decode()


class Server:
    """An etcd of one member."""

    def __init__(self, programs, directory, *flags):
        self.etcdctl = programs["etcdctl"]
        ports = []
        for _ in range(2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        self.url, peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.log = open(f"{directory}.log", "ab")
        command = [programs["etcd"], "--name", "m1", "--data-dir", str(directory),
                   "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                   "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                   "--initial-cluster", f"m1={peer}", "--initial-cluster-token", "fixture", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.token = None
        for _ in range(200):
            try:
                if json.load(urllib.request.urlopen(self.url + "/health?exclude=NOSPACE"))["health"] == "true":
                    break
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.1)
        else:
            sys.exit(f"etcd did not start, see {directory}.log")

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()

    def login(self):
        self.token = None
        name, password = ROOT
        reply = self.call("auth/authenticate", name=name, password=password)
        self.token = reply["token"]

    def call(self, path, **body):
        headers = {"Authorization": self.token} if self.token else {}
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode(), headers)
        return json.load(urllib.request.urlopen(request))

    def ctl(self, *arguments, **options):
        user = ["--user", ":".join(ROOT)] if self.token else []
        command = [self.etcdctl, "--endpoints", self.url, *user, *arguments]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, **options)
        return done.stdout.decode()

    def put(self, key, value, **more):
        return self.call("kv/put", key=text(key), value=text(value), **more)

    def delete(self, key, range_end=""):
        return self.call("kv/deleterange", key=text(key), range_end=text(range_end))

    def get(self, **more):
        return self.call("kv/range", key=text("\0"), range_end=text("\0"), **more)

    def revision(self):
        return int(self.get(limit="1")["header"]["revision"])


def line(kv):
    """A key as one line of what is hashed."""
    numbers = [kv.get(name, "0") for name in ("create_revision", "mod_revision", "version", "lease")]
    return "|".join([kv["key"], kv.get("value", ""), *numbers])


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def watch(server, start):
    """The events from a revision on, or at which revision the watch was refused."""
    headers = {"Authorization": server.token} if server.token else {}
    create = {"key": text("\0"), "range_end": text("\0"), "start_revision": str(start)}
    body = json.dumps({"create_request": create}).encode()
    request = urllib.request.Request(server.url + "/v3/watch", body, headers)
    last, events = server.revision(), []
    with urllib.request.urlopen(request, timeout=20) as stream:
        for reply in map(json.loads, stream):
            reply = reply["result"]
            if reply.get("canceled"):
                return {"compacted": int(reply["compact_revision"])}
            events += reply.get("events", [])
            if events and int(events[-1]["kv"]["mod_revision"]) >= last:
                lines = [event.get("type", "PUT") + "|" + line(event["kv"]) for event in events]
                return {"events": len(lines), "digest": digest(lines)}


def describe(server):
    """Everything that an etcd answers and that must be the same after an import."""
    now = server.revision()
    ranges, hashes = {}, {}
    for revision in range(2, now + 1):
        try:
            found = server.get(revision=str(revision)).get("kvs", [])
        except urllib.error.HTTPError:
            continue
        ranges[revision] = {"keys": len(found), "digest": digest(map(line, found))}
    first = min(ranges)
    for revision in range(first, now + 1):
        try:
            reply = server.ctl("endpoint", "hashkv", "--rev", str(revision), "-w", "json")
        except subprocess.CalledProcessError:
            continue  # etcd 3.4 refuses the compacted revision itself
        reply = json.loads(reply)[0].get("HashKV") or json.loads(reply)[0]["HashKV"]
        hashes[revision] = {"hash": reply["hash"], "compact": reply.get("compact_revision", 0)}
    leases = {}
    for lease in server.call("lease/leases").get("leases", []):
        found = server.call("lease/timetolive", ID=lease["ID"], keys=True)
        leases[lease["ID"]] = {"ttl": found["grantedTTL"], "keys": found.get("keys", [])}
    users = {name: server.call("auth/user/get", name=name).get("roles", [])
             for name in server.call("auth/user/list")["users"]}
    roles = {name: server.call("auth/role/get", role=name).get("perm", [])
             for name in server.call("auth/role/list")["roles"]}
    alarms = server.call("maintenance/alarm", action="GET").get("alarms", [])
    return {"revision": now, "first": first, "ranges": ranges, "hashes": hashes,
            "watch": {first: watch(server, first), first - 1: watch(server, first - 1),
                      first + 3: watch(server, first + 3)},
            "leases": leases, "users": users, "roles": roles, "alarms": alarms}


def fill(server):
    """Keys with history, revisions of several writes, large and empty values."""
    for part in range(6):
        puts = [{"request_put": {"key": text(f"many/{part}/{number:02}"), "value": text("x" * 40)}}
                for number in range(30)]
        server.call("kv/txn", success=puts)
    for round in range(3):
        for name in "abc":
            server.put(f"hist/{name}", f"round {round}")
    server.delete("hist/b")
    server.put("hist/b", "again")
    server.delete("many/3/", "many/30")
    server.put("large", "L" * 9000)
    server.put("empty", "")
    server.call("kv/txn", compare=[{"key": text("hist/a"), "target": "VERSION", "version": "3"}],
                success=[{"request_put": {"key": text("txn/1"), "value": text("one")}},
                         {"request_put": {"key": text("txn/2"), "value": text("two")}},
                         {"request_delete_range": {"key": text("hist/c")}}],
                failure=[{"request_put": {"key": text("txn/failed")}}])
    for lease, ttl in [("101", "3600"), ("102", "5000"), ("103", "7200")]:
        server.call("lease/grant", ID=lease, TTL=ttl)
    server.put("leased/1", "one", lease="101")
    server.put("leased/2", "two", lease="101")
    server.put("leased/3", "three", lease="102")
    server.call("lease/revoke", ID="102")
    server.put("leased/2", "detached")
    # The compacted revision is that of a deletion, and history follows it.
    server.put("before", "compaction")
    server.delete("before")
    server.call("kv/compaction", revision=str(server.revision()), physical=True)
    for round in (4, 5):
        server.put("hist/a", f"round {round}")
    server.delete("hist/b")
    server.put("hist/b", "a third time")


def secure(server):
    """Users, roles and permissions of every kind."""
    for role in ("root", "reader"):
        server.call("auth/role/add", name=role)
    permissions = [("READ", "hist/", "hist0"), ("READWRITE", "single", ""), ("WRITE", "from", "\0")]
    for kind, key, end in permissions:
        permission = {"permType": kind, "key": text(key), "range_end": text(end)}
        server.call("auth/role/grant", name="reader", perm=permission)
    for name, password, role in [("root", "rootpw", "root"), ("alice", "alicepw", "reader")]:
        server.call("auth/user/add", name=name, password=password)
        server.call("auth/user/grant", user=name, role=role)
    server.call("auth/user/add", name="carol", options={"no_password": True})
    server.call("auth/enable")
    server.login()


def continue_log(server):
    """Requests of every kind, which only the log has."""
    server.put("wal/1", "one")
    server.put("wal/1", "two")
    server.put("wal/2", "gone")
    server.delete("wal/2")
    nested = {"success": [{"request_put": {"key": text("wal/4"), "value": text("nested")}}]}
    server.call("kv/txn", compare=[{"key": text("wal/1"), "target": "VERSION", "version": "2"}],
                success=[{"request_put": {"key": text("wal/3"), "value": text("in txn")}},
                         {"request_range": {"key": text("wal/1")}}, {"request_txn": nested},
                         {"request_delete_range": {"key": text("txn/1")}}])
    for lease, ttl in [("4242", "900"), ("4243", "800"), ("4244", "900")]:
        server.call("lease/grant", ID=lease, TTL=ttl)
    server.put("wal/leased", "x", lease="4242")
    server.put("wal/revoked", "x", lease="4244")
    server.call("lease/revoke", ID="4244")
    server.call("auth/user/add", name="bob", password="bobpw")
    server.call("auth/role/add", name="writer")
    permission = {"permType": "WRITE", "key": text("w"), "range_end": text("x")}
    server.call("auth/role/grant", name="writer", perm=permission)
    server.call("auth/user/grant", user="bob", role="writer")
    server.call("auth/user/changepw", name="alice", password="newpw")
    server.call("auth/role/revoke", role="reader", key=text("single"))
    server.call("auth/user/delete", name="carol")
    alarm = {"memberID": "78", "alarm": "NOSPACE"}
    server.call("maintenance/alarm", action="ACTIVATE", **alarm)
    server.call("maintenance/alarm", action="DEACTIVATE", **alarm)
    server.call("maintenance/alarm", action="DEACTIVATE", memberID="77", alarm="NOSPACE")
    server.call("kv/compaction", revision=str(server.revision() - 3), physical=True)
    server.put("wal/last", "after the compaction")
    server.delete("leased/1")


def trim(path):
    """Cuts a log file behind its last record."""
    contents = path.read_bytes()
    end = 0
    while length := int.from_bytes(contents[end:end + 8], "little"):
        padding = length >> 56 & 7 if length >> 63 else 0
        end += 8 + (length & (1 << 56) - 1) + padding
    path.write_bytes(contents[:end])


def main():
    programs = dict(zip(("etcd", "etcdctl", "etcdutl"), map(str, sys.argv[1:4])))
    target = pathlib.Path(sys.argv[4])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        server = Server(programs, work / "data")
        fill(server)
        secure(server)
        server.call("maintenance/alarm", action="ACTIVATE", memberID="77", alarm="NOSPACE")
        server.ctl("defrag")
        server.ctl("snapshot", "save", str(work / "snapshot.db"))
        shutil.copy(work / "snapshot.db", target / "snapshot.db")
        server.stop()
        shutil.copy(work / "data/member/snap/db", work / "db")
        server = Server(programs, work / "data")
        server.login()
        server.call("maintenance/alarm", action="DEACTIVATE", memberID="77", alarm="NOSPACE")
        continue_log(server)
        server.stop(signal.SIGKILL)
        # The database from before: as if the machine had lost what was not synced.
        member = target / "data" / "member"
        (member / "snap").mkdir(parents=True)
        shutil.copy(work / "db", member / "snap" / "db")
        shutil.copytree(work / "data/member/wal", member / "wal", ignore=lambda _, names: [
            name for name in names if not name.endswith(".wal")])
        shutil.copy(work / "db", work / "data/member/snap/db")
        server = Server(programs, work / "data")
        server.login()
        record(server, target / "data.json")
        server.stop()
        for path in (member / "wal").iterdir():
            trim(path)
        command = [programs["etcdutl"], "snapshot"]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run([*command, "restore", str(target / "snapshot.db"), "--name", "m1",
                        "--data-dir", str(work / "restored"), "--initial-cluster",
                        "m1=http://127.0.0.1:1", "--initial-advertise-peer-urls",
                        "http://127.0.0.1:1"], check=True, env=environment, capture_output=True)
        status = subprocess.run([*command, "status", str(work / "snapshot.db"), "-w", "json"],
                                check=True, env=environment, capture_output=True)
        server = Server(programs, work / "restored")
        server.login()
        record(server, target / "snapshot.json", status=json.loads(status.stdout))
        server.stop()


def record(server, path, **more):
    described = describe(server)
    path.write_text(json.dumps({**described, **more}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
