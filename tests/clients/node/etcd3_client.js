// The client etcd3 of npm, which uses gRPC.
const assert = require('assert');
const { Etcd3 } = require('etcd3');

const hosts = `http://${process.env.ENDPOINT}`;

async function keys(client) {
  await client.put('foo').value('bar');
  assert.strictEqual(await client.get('foo').string(), 'bar');
  for (let number = 0; number < 5; number++) await client.put(`p/${number}`).value(number);
  assert.deepStrictEqual(await client.getAll().prefix('p/').numbers(),
    { 'p/0': 0, 'p/1': 1, 'p/2': 2, 'p/3': 3, 'p/4': 4 });
  const names = await client.getAll().prefix('p/').sort('Key', 'Descend').limit(2).keys();
  assert.deepStrictEqual(names, ['p/4', 'p/3']);
  await client.delete().key('foo');
  assert.strictEqual(await client.get('foo').string(), null);
  const names2 = client.namespace('inside/');
  await names2.put('a').value('1');
  assert.strictEqual(await client.get('inside/a').string(), '1');
}

async function transactions(client) {
  const first = await client.if('txn', 'Version', '==', 0).then(client.put('txn').value('1'))
    .else(client.get('txn')).commit();
  assert.strictEqual(first.succeeded, true);
  const second = await client.if('txn', 'Value', '==', '2').then(client.delete().key('txn'))
    .else(client.get('txn')).commit();
  assert.strictEqual(second.succeeded, false);
  const sum = await client.stm().transact(async (tx) => {
    const value = Number(await tx.get('txn').string()) + 41;
    await tx.put('txn').value(value);
    return value;
  });
  assert.strictEqual(sum, 42);
}

async function leases(client) {
  const lease = client.lease(60);
  await lease.put('leased').value('x');
  assert.strictEqual(await client.get('leased').string(), 'x');
  await lease.keepaliveOnce();
  await lease.revoke();
  assert.strictEqual(await client.get('leased').string(), null);
}

async function watches(client) {
  const watcher = await client.watch().prefix('w/').create();
  const found = [];
  const all = new Promise((resolve) => watcher.on('put', (kv) => {
    found.push(kv.value.toString());
    if (found.length === 3) resolve();
  }));
  for (let number = 0; number < 3; number++) await client.put(`w/${number}`).value(number);
  await all;
  assert.deepStrictEqual(found, ['0', '1', '2']);
  await watcher.cancel();
}

async function locks(client) {
  const lock = await client.lock('name').ttl(60).acquire();
  await assert.rejects(client.lock('name').ttl(60).acquire());
  await lock.release();
  await client.lock('name').ttl(60).do(async () => {});
}

async function elections(client) {
  const election = client.election('election', 60);
  const campaign = election.campaign('one');
  await new Promise((resolve, reject) => {
    campaign.on('elected', resolve);
    campaign.on('error', reject);
  });
  assert.strictEqual(await election.leader(), 'one');
  await campaign.resign();
}

async function authentication(client) {
  const root = client.role('root');
  await root.create();
  const user = client.user('root');
  await user.create('secret');
  await user.addRole('root');
  const reader = client.role('reader');
  await reader.create();
  await reader.grant({ permission: 'Read', range: client.range({ prefix: 'p/' }) });
  await client.user('reader').create('secret2');
  await client.user('reader').addRole('reader');
  await client.auth.authEnable();
  const as = (username, password) => new Etcd3({ hosts, auth: { username, password } });
  const limited = as('reader', 'secret2');
  assert.strictEqual(await limited.get('p/1').string(), '1');
  await assert.rejects(async () => { await limited.put('p/1').value('2'); }, /permission denied/i);
  const admin = as('root', 'secret');
  await admin.auth.authDisable();
  limited.close();
  admin.close();
}

(async () => {
  const client = new Etcd3({ hosts });
  for (const test of [keys, transactions, leases, watches, locks, elections, authentication]) {
    await test(client);
    console.log(`${test.name}: ok`);
  }
  client.close();
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
