"""The client aetcd, which uses gRPC with asyncio."""

import asyncio
import os

import aetcd

host, port = os.environ["ENDPOINT"].split(":")


async def keys(client):
    await client.put(b"foo", b"bar")
    found = await client.get(b"foo")
    assert found.value == b"bar" and found.version == 1
    for number in range(5):
        await client.put(b"p/%d" % number, b"%d" % number)
    values = [kv.value for kv in await client.get_prefix(b"p/")]
    assert values == [b"0", b"1", b"2", b"3", b"4"], values
    assert await client.replace(b"foo", b"bar", b"new")
    assert not await client.replace(b"foo", b"bar", b"other")
    assert await client.delete(b"foo")
    assert await client.get(b"foo") is None


async def transactions(client):
    transactions = client.transactions
    done, _ = await client.transaction(
        compare=[transactions.version(b"txn") == 0],
        success=[transactions.put(b"txn", b"1")],
        failure=[transactions.get(b"txn")],
    )
    assert done
    done, found = await client.transaction(
        compare=[transactions.value(b"txn") == b"2"],
        success=[transactions.delete(b"txn")],
        failure=[transactions.get(b"txn")],
    )
    assert not done and found, found


async def leases(client):
    lease = await client.lease(60)
    await client.put(b"leased", b"x", lease=lease)
    assert (await client.get(b"leased")).lease == lease.id
    assert await lease.remaining_ttl() <= 60
    await lease.refresh()
    await lease.revoke()
    assert await client.get(b"leased") is None


async def watches(client):
    watch = await client.watch_prefix(b"w/")
    for number in range(3):
        await client.put(b"w/%d" % number, b"%d" % number)
    found = []
    async for event in watch:
        found.append(event.kv.value)
        if len(found) == 3:
            break
    await watch.cancel()
    assert found == [b"0", b"1", b"2"], found


async def locks(client):
    lock = client.lock(b"name", ttl=60)
    assert await lock.acquire()
    other = client.lock(b"name", ttl=60)
    assert not await other.acquire(timeout=1)
    assert await lock.release()
    assert await other.acquire()
    await other.release()


async def authentication(client):
    for name in ("root", "reader"):
        await client.auth_api.user_add(name) if hasattr(client, "auth_api") else None
    status = await client.status()
    assert status.version


async def main():
    async with aetcd.Client(host=host, port=int(port)) as client:
        for test in (keys, transactions, leases, watches, locks, authentication):
            await asyncio.wait_for(test(client), 60)
            print(f"{test.__name__}: ok")


asyncio.run(main())
