// etcd's own client, with its helpers: concurrency, mirror, namespace, leasing, ordering.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
)

var endpoints = []string{os.Getenv("ENDPOINT")}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(found, expected any) {
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		panic(fmt.Sprintf("found %v, expected %v", found, expected))
	}
}

func open(user, password string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 30 * time.Second, Username: user, Password: password,
	})
	check(err)
	return client
}

func value(ctx context.Context, kv clientv3.KV, key string) string {
	found, err := kv.Get(ctx, key)
	check(err)
	if len(found.Kvs) == 0 {
		return ""
	}
	return string(found.Kvs[0].Value)
}

func keys(ctx context.Context, client *clientv3.Client) {
	_, err := client.Put(ctx, "foo", "bar")
	check(err)
	equal(value(ctx, client, "foo"), "bar")
	done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Value("foo"), "=", "bar")).
		Then(clientv3.OpPut("foo", "new"), clientv3.OpGet("foo")).Commit()
	check(err)
	equal(done.Succeeded, true)
	for number := range 5 {
		_, err := client.Put(ctx, "p/"+strconv.Itoa(number), "x")
		check(err)
	}
	page, err := client.Get(ctx, "p/", clientv3.WithPrefix(), clientv3.WithLimit(2))
	check(err)
	equal([]any{len(page.Kvs), page.Count, page.More}, []any{2, 5, true})
}

func watches(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := client.Watch(clientv3.WithRequireLeader(ctx), "w/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	for number := range 3 {
		_, err := client.Put(ctx, "w/a", strconv.Itoa(number))
		check(err)
	}
	found := ""
	for len(found) < 3 {
		response := <-events
		check(response.Err())
		for _, event := range response.Events {
			found += string(event.Kv.Value)
		}
	}
	equal(found, "012")
}

func leases(ctx context.Context, client *clientv3.Client) {
	lease, err := client.Grant(ctx, 60)
	check(err)
	_, err = client.Put(ctx, "leased", "x", clientv3.WithLease(lease.ID))
	check(err)
	alive, err := client.KeepAlive(ctx, lease.ID)
	check(err)
	equal((<-alive).ID, lease.ID)
	_, err = client.Revoke(ctx, lease.ID)
	check(err)
	equal(value(ctx, client, "leased"), "")
}

func locksAndElections(ctx context.Context, client *clientv3.Client) {
	first, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	check(err)
	second, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	check(err)
	mutex, other := concurrency.NewMutex(first, "lock"), concurrency.NewMutex(second, "lock")
	check(mutex.Lock(ctx))
	equal(other.TryLock(ctx), concurrency.ErrLocked)
	waiting := make(chan error)
	go func() { waiting <- other.Lock(ctx) }()
	check(mutex.Unlock(ctx))
	check(<-waiting)
	check(other.Unlock(ctx))

	one, two := concurrency.NewElection(first, "election"), concurrency.NewElection(second, "election")
	check(one.Campaign(ctx, "one"))
	go func() { waiting <- two.Campaign(ctx, "two") }()
	check(one.Proclaim(ctx, "one again"))
	leader, err := two.Leader(ctx)
	check(err)
	equal(string(leader.Kvs[0].Value), "one again")
	check(one.Resign(ctx))
	check(<-waiting)
	equal(string((<-one.Observe(ctx)).Kvs[0].Value), "two")

	_, err = concurrency.NewSTM(client, func(stm concurrency.STM) error {
		number, _ := strconv.Atoi(stm.Get("counter"))
		stm.Put("counter", strconv.Itoa(number+1))
		return nil
	})
	check(err)
	equal(value(ctx, client, "counter"), "1")
	check(first.Close())
	check(second.Close())
}

func mirrors(ctx context.Context, client *clientv3.Client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	syncer := mirror.NewSyncer(client, "p/", 0)
	copied, errors := syncer.SyncBase(ctx)
	count := 0
	for page := range copied {
		count += len(page.Kvs)
	}
	check(<-errors)
	equal(count, 5)
	updates := syncer.SyncUpdates(ctx)
	_, err := client.Put(ctx, "p/new", "y")
	check(err)
	equal(string((<-updates).Events[0].Kv.Key), "p/new")
}

func namespaces(ctx context.Context, client *clientv3.Client) {
	inside := namespace.NewKV(client.KV, "inside/")
	watcher := namespace.NewWatcher(client.Watcher, "inside/")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := watcher.Watch(ctx, "a")
	_, err := inside.Put(ctx, "a", "1")
	check(err)
	equal(value(ctx, client, "inside/a"), "1")
	equal(string((<-events).Events[0].Kv.Key), "a")
}

func leased(ctx context.Context, client *clientv3.Client) {
	kv, closeKV, err := leasing.NewKV(client, "leasing/")
	check(err)
	defer closeKV()
	_, err = kv.Put(ctx, "cached", "1")
	check(err)
	equal(value(ctx, kv, "cached"), "1")
	// Another client's leasing KV takes the key away from the cache.
	other, closeOther, err := leasing.NewKV(client, "leasing/")
	check(err)
	defer closeOther()
	_, err = other.Put(ctx, "cached", "2")
	check(err)
	equal(value(ctx, kv, "cached"), "2")
}

func authentication(ctx context.Context, client *clientv3.Client) {
	for _, name := range []string{"root", "reader"} {
		_, err := client.UserAdd(ctx, name, "secret")
		check(err)
		_, err = client.RoleAdd(ctx, name)
		check(err)
		_, err = client.UserGrantRole(ctx, name, name)
		check(err)
	}
	read := clientv3.PermissionType(clientv3.PermRead)
	_, err := client.RoleGrantPermission(ctx, "reader", "p/", "p0", read)
	check(err)
	_, err = client.AuthEnable(ctx)
	check(err)
	reader := open("reader", "secret")
	defer reader.Close()
	equal(value(ctx, reader, "p/1"), "x")
	_, err = reader.Put(ctx, "p/1", "y")
	equal(err, "etcdserver: permission denied")
	root := open("root", "secret")
	defer root.Close()
	_, err = root.AuthDisable(ctx)
	check(err)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := open("", "")
	defer client.Close()
	for _, test := range []struct {
		name string
		run  func(context.Context, *clientv3.Client)
	}{
		{"keys", keys}, {"watches", watches}, {"leases", leases},
		{"locks and elections", locksAndElections}, {"mirrors", mirrors},
		{"namespaces", namespaces}, {"leasing", leased}, {"authentication", authentication},
	} {
		test.run(ctx, client)
		fmt.Println(test.name + ": ok")
	}
}
