//! The concurrent structures of `quorate`'s runtime under loom: the same source files, with
//! loom's types instead of those of `std` and tokio. Loom runs each test under all
//! interleavings, and reports a deadlock (a lost wake-up) as a failure.

#![cfg(test)]

#[path = "../../src/runtime/arrivals.rs"]
mod arrivals;
#[path = "../../src/runtime/batch_queue.rs"]
mod batch_queue;
#[path = "../../src/runtime/disk_use.rs"]
mod disk_use;
#[path = "../../src/runtime/job_queue.rs"]
mod job_queue;

/// What the structures use, from loom. The same names as in `src/runtime/sync.rs`.
mod sync {
    use std::task::{Poll, Waker};

    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `tokio::sync::Notify` for one waiter: it keeps one permit.
    pub(crate) struct Notify {
        state: Mutex<(bool, Option<Waker>)>,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self { state: Mutex::new((false, None)) }
        }

        pub(crate) fn notify_one(&self) {
            let mut state = lock(&self.state);
            state.0 = true;
            let waker = state.1.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }

        pub(crate) async fn notified(&self) {
            std::future::poll_fn(|context| {
                let mut state = lock(&self.state);
                if std::mem::take(&mut state.0) {
                    return Poll::Ready(());
                }
                state.1 = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }
}

mod tests {
    use loom::future::block_on;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    use super::arrivals::Arrivals;
    use super::batch_queue::{BatchQueue, QuietKind, QuietKinds};
    use super::disk_use::DiskUses;
    use super::job_queue::JobQueue;

    #[test]
    fn a_worker_gets_every_job_once_and_ends_after_the_close() {
        loom::model(|| {
            let queue = Arc::new(JobQueue::new());
            let producers: Vec<_> = (0..2)
                .map(|number| {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || queue.push(number))
                })
                .collect();
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
            assert_eq!(all, [0, 1]);
        });
    }

    #[test]
    fn a_worker_ends_when_the_close_races_with_a_push() {
        loom::model(|| {
            let queue = Arc::new(JobQueue::new());
            let producer = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push(()))
            };
            let closer = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.close())
            };
            let mut batch = Vec::new();
            while queue.take_all(&mut batch) {
                batch.clear();
            }
            producer.join().unwrap();
            closer.join().unwrap();
        });
    }

    #[test]
    fn a_consumer_gets_every_item_once() {
        loom::model(|| {
            let queue = Arc::new(BatchQueue::new());
            let producers: Vec<_> = (0..2)
                .map(|number| {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || queue.push(number))
                })
                .collect();
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while all.len() < 2 {
                block_on(queue.ready());
                queue.take_all(&mut batch);
                all.append(&mut batch);
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            all.sort_unstable();
            assert_eq!(all, [0, 1]);
        });
    }

    #[test]
    fn a_consumer_is_woken_for_a_kind_that_it_awaits() {
        for kind in [QuietKind::Save, QuietKind::Job] {
            loom::model(move || {
                let queue = Arc::new(BatchQueue::new());
                let producer = {
                    let queue = Arc::clone(&queue);
                    thread::spawn(move || queue.push_quietly(1, kind))
                };
                let (saves, jobs) = (kind == QuietKind::Save, kind == QuietKind::Job);
                queue.set_awaited(QuietKinds { saves, jobs });
                block_on(queue.ready());
                let mut batch = Vec::new();
                queue.take_all(&mut batch);
                assert_eq!(batch, [1]);
                producer.join().unwrap();
            });
        }
    }

    #[test]
    fn items_that_are_put_back_come_first() {
        loom::model(|| {
            let queue = Arc::new(BatchQueue::new());
            let producer = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.push(3))
            };
            queue.push_front(vec![1, 2]);
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while all.len() < 3 {
                block_on(queue.ready());
                queue.take_all(&mut batch);
                all.append(&mut batch);
            }
            producer.join().unwrap();
            assert_eq!(all, [1, 2, 3]);
        });
    }

    #[test]
    fn a_closed_queue_keeps_no_item() {
        loom::model(|| {
            let (queue, item) = (Arc::new(BatchQueue::new()), std::sync::Arc::new(()));
            let producer = {
                let (queue, item) = (Arc::clone(&queue), std::sync::Arc::clone(&item));
                thread::spawn(move || queue.push(item))
            };
            queue.close();
            producer.join().unwrap();
            assert_eq!(std::sync::Arc::strong_count(&item), 1);
        });
    }

    #[test]
    fn a_cancel_returns_only_when_no_use_is_left() {
        loom::model(|| {
            let uses = DiskUses::new();
            let is_used = Arc::new(AtomicBool::new(false));
            let user = {
                let (uses, is_used) = (uses.clone(), Arc::clone(&is_used));
                thread::spawn(move || {
                    let disk_use = uses.begin_use();
                    if !disk_use.is_cancelled() {
                        is_used.store(true, Ordering::Release);
                        is_used.store(false, Ordering::Release);
                    }
                })
            };
            let other = {
                let uses = uses.clone();
                thread::spawn(move || drop(uses.begin_use()))
            };
            block_on(uses.cancel());
            assert!(!is_used.load(Ordering::Acquire));
            user.join().unwrap();
            other.join().unwrap();
        });
    }

    /// A request that comes while the member counts those that wait is not overlooked: otherwise the member
    /// sleeps although all have come, which loom reports as a deadlock.
    #[test]
    fn a_member_is_woken_by_requests_that_come_while_it_counts() {
        loom::model(|| {
            let arrivals = Arc::new(Arrivals::new());
            let mailbox = Arc::new(AtomicUsize::new(0));
            let clients: Vec<_> = (0..2)
                .map(|_| {
                    let (arrivals, mailbox) = (Arc::clone(&arrivals), Arc::clone(&mailbox));
                    thread::spawn(move || {
                        mailbox.fetch_add(1, Ordering::Relaxed);
                        arrivals.on_request();
                    })
                })
                .collect();
            loop {
                let so_far = arrivals.so_far();
                let waiting = mailbox.load(Ordering::Relaxed);
                arrivals.wait_for(so_far, 2 - waiting);
                if waiting == 2 {
                    break;
                }
                block_on(arrivals.ready());
            }
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
}
