"""The client etcd3gw, which uses the JSON gateway."""

import os
import threading
import time

import etcd3gw
from etcd3gw import exceptions

host, port = os.environ["ENDPOINT"].split(":")
client = etcd3gw.client(host=host, port=int(port))


def keys():
    assert client.put("foo", "bar")
    assert client.get("foo") == [b"bar"]
    value, metadata = client.get("foo", metadata=True)[0]
    assert value == b"bar" and metadata["version"] == "1"
    for number in range(5):
        client.put(f"p/{number}", str(number))
    values = [value for value, _ in client.get_prefix("p/", sort_order="descend")]
    assert values == [b"4", b"3", b"2", b"1", b"0"], values
    assert client.replace("foo", "bar", "new")
    assert not client.replace("foo", "bar", "other")
    assert client.get("foo") == [b"new"]
    assert client.create("once", "1") and not client.create("once", "2")
    assert client.delete("foo") and client.get("foo") == []
    assert client.delete_prefix("p/")
    assert client.get_prefix("p/") == []


def transactions():
    key = etcd3gw.utils._encode("txn")
    value = etcd3gw.utils._encode("1")
    done = client.transaction({
        "compare": [{"key": key, "result": "EQUAL", "target": "VERSION", "version": 0}],
        "success": [{"request_put": {"key": key, "value": value}}],
        "failure": [{"request_range": {"key": key}}],
    })
    assert done["succeeded"] and "response_put" in done["responses"][0], done


def leases():
    lease = client.lease(ttl=60)
    client.put("leased", "x", lease=lease)
    assert 0 < lease.ttl() <= 60
    assert lease.refresh() == 60
    assert lease.keys() == [b"leased"], lease.keys()
    assert lease.revoke()
    assert client.get("leased") == []


def locks():
    lock = client.lock("name", ttl=60)
    assert lock.acquire() and lock.is_acquired()
    other = client.lock("name", ttl=60)
    assert not other.acquire()
    assert lock.release() and other.acquire()
    with client.lock("scoped"):
        pass


def watches():
    events, cancel = client.watch_prefix("w/")
    writer = threading.Thread(target=lambda: [client.put(f"w/{n}", str(n)) for n in range(3)])
    writer.start()
    found = [next(events) for _ in range(3)]
    writer.join()
    cancel()
    assert [event["kv"]["value"] for event in found] == [b"0", b"1", b"2"], found
    try:
        client.watch_once("never", timeout=1)
    except exceptions.WatchTimedOut:
        pass
    else:
        raise AssertionError("a watch without events has to time out")


def members():
    assert client.status()["header"]["revision"]
    assert len(list(client.members())) == 1


for test in (keys, transactions, leases, locks, watches, members):
    test()
    print(f"{test.__name__}: ok")
