//! The concurrent structures under real threads. `scripts/miri.sh` runs these under Miri;
//! `crates/node/loom` explores all interleavings of similar ones.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;

use super::arrivals::Arrivals;
use super::batch_queue::{BatchQueue, QuietKind, QuietKinds};
use super::disk_use::DiskUses;
use super::job_queue::JobQueue;

const PRODUCERS: u64 = 4;
const ITEMS: u64 = 25;

fn block_on<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(task)
}

/// Whether it is ready when it is polled once.
fn is_ready(task: impl Future) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    std::pin::pin!(task).poll(&mut context).is_ready()
}

fn expected() -> Vec<u64> {
    (0..PRODUCERS * ITEMS).collect()
}

#[test]
fn a_worker_gets_every_job_once() {
    let queue = Arc::new(JobQueue::new());
    let producers = (0..PRODUCERS).map(|producer| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || (0..ITEMS).for_each(|nth| queue.push(producer * ITEMS + nth)))
    });
    let producers: Vec<_> = producers.collect();
    let worker = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while queue.take_all(&mut batch) {
                all.append(&mut batch);
            }
            all
        })
    };
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    queue.close();
    let mut all = worker.join().unwrap();
    all.sort_unstable();
    assert_eq!(all, expected());
}

#[test]
fn a_consumer_gets_every_item_once() {
    let queue = Arc::new(BatchQueue::new());
    let producers = (0..PRODUCERS).map(|producer| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || (0..ITEMS).for_each(|nth| queue.push(producer * ITEMS + nth)))
    });
    let producers: Vec<_> = producers.collect();
    let mut all = block_on(async {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while all.len() < expected().len() {
            queue.ready().await;
            queue.take_all(&mut batch);
            all.append(&mut batch);
        }
        all
    });
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    all.sort_unstable();
    assert_eq!(all, expected());
}

#[test]
fn an_item_that_can_wait_does_not_wake_the_consumer() {
    let queue = BatchQueue::new();
    let is_woken = |queue: &BatchQueue<u64>| is_ready(queue.ready());
    queue.push_quietly(1, QuietKind::Job);
    assert!(!is_woken(&queue));
    queue.push(2);
    assert!(is_woken(&queue), "for the second one");
    let mut batch = Vec::new();
    queue.take_all(&mut batch);
    assert_eq!(batch, [1, 2]);
    // A consumer that awaits jobs is woken for those that are there and for later ones.
    let jobs = QuietKinds { jobs: true, saves: false };
    queue.push_quietly(3, QuietKind::Job);
    queue.set_awaited(jobs);
    assert!(is_woken(&queue));
    queue.take_all(&mut batch);
    queue.push_quietly(4, QuietKind::Save);
    assert!(!is_woken(&queue), "no save is awaited");
    queue.set_awaited(jobs);
    assert!(!is_woken(&queue), "no job is queued");
    queue.push_quietly(5, QuietKind::Job);
    assert!(is_woken(&queue));
    queue.take_all(&mut batch);
    assert_eq!(batch, [4, 5]);
    queue.set_awaited(QuietKinds::default());
    queue.push_quietly(6, QuietKind::Job);
    assert!(!is_woken(&queue));
}

#[test]
fn a_cancel_waits_for_all_uses() {
    let uses = DiskUses::new();
    let users: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let disk_use = uses.begin_use();
            thread::spawn(move || {
                while !disk_use.is_cancelled() {
                    thread::yield_now();
                }
            })
        })
        .collect();
    block_on(uses.cancel());
    users.into_iter().for_each(|user| user.join().unwrap());
    assert!(uses.begin_use().is_cancelled());
}

#[test]
fn the_member_is_woken_once_by_the_last_request_that_it_waits_for() {
    let arrivals = Arrivals::new();
    arrivals.on_request();
    assert!(!is_ready(arrivals.ready()), "it waits for none");
    arrivals.wait_for(arrivals.so_far(), 2);
    arrivals.on_request();
    assert!(!is_ready(arrivals.ready()));
    arrivals.on_request();
    assert!(is_ready(arrivals.ready()));
    arrivals.on_request();
    assert!(!is_ready(arrivals.ready()));
    arrivals.wait_for(arrivals.so_far(), 1);
    arrivals.wait_for(arrivals.so_far(), 0);
    arrivals.on_request();
    assert!(!is_ready(arrivals.ready()));
}

#[test]
fn requests_count_that_come_before_the_member_has_said_how_many_it_waits_for() {
    let arrivals = Arrivals::new();
    let so_far = arrivals.so_far();
    arrivals.on_request();
    arrivals.wait_for(so_far, 2);
    assert!(!is_ready(arrivals.ready()));
    arrivals.on_request();
    assert!(is_ready(arrivals.ready()));
    let so_far = arrivals.so_far();
    (0..3).for_each(|_| arrivals.on_request());
    arrivals.wait_for(so_far, 2);
    assert!(is_ready(arrivals.ready()), "all have come");
}
