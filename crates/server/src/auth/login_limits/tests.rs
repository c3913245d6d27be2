//! On a paused clock: time passes only where an attempt sleeps.

use tokio::task::JoinSet;
use tokio::time::{advance, timeout};

use super::*;

const fn address(last: u8) -> Option<IpAddr> {
    Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, last)))
}

async fn fail(limits: &Arc<LoginLimits>, user: &str, address: Option<IpAddr>) -> Duration {
    let began = Instant::now();
    limits.begin(user, address).await.map(drop).unwrap();
    began.elapsed()
}

fn millis(expected: &[u64]) -> Vec<Duration> {
    expected.iter().map(|millis| Duration::from_millis(*millis)).collect()
}

fn close(one: Duration, other: Duration) -> bool {
    // The clock of tokio has a resolution of 1 ms.
    one.abs_diff(other) <= Duration::from_millis(2)
}

#[tokio::test(start_paused = true)]
async fn delays_double_and_end_with_a_success() {
    let limits = Arc::new(LoginLimits::default());
    for expected in millis(&[0, 0, 0, 100, 200, 400, 800, 1_600, 3_000, 3_000]) {
        let waited = fail(&limits, "a", None).await;
        assert!(close(waited, expected), "{waited:?}, not {expected:?}");
    }
    assert_eq!(fail(&limits, "b", None).await, Duration::ZERO, "others are not delayed");
    limits.begin("a", None).await.unwrap().succeeded();
    assert_eq!(fail(&limits, "a", None).await, Duration::ZERO);
    for _ in 0..5 {
        fail(&limits, "a", None).await;
    }
    advance(Duration::from_secs(2)).await;
    assert_eq!(fail(&limits, "a", None).await, Duration::ZERO, "the time has passed already");
    advance(FORGOTTEN_AFTER + Duration::from_secs(1)).await;
    assert_eq!(fail(&limits, "a", None).await, Duration::ZERO);
}

/// 1,000 guesses at the same moment, for different users.
#[tokio::test(start_paused = true)]
async fn a_burst_gives_no_more_guesses_than_a_sequence() {
    let limits = Arc::new(LoginLimits::default());
    let began = Instant::now();
    let mut burst = JoinSet::new();
    for number in 0..1_000 {
        let limits = Arc::clone(&limits);
        burst.spawn(async move {
            let attempt = limits.begin(&format!("user-{}", number % 10), address(1)).await;
            attempt.map(|_| began.elapsed())
        });
    }
    let mut checked: Vec<Duration> = burst.join_all().await.into_iter().flatten().collect();
    checked.sort();
    let expected = millis(&[0, 0, 0, 100, 300, 700, 1_500, 3_100, 6_100, 9_100]);
    assert_eq!(checked.len(), expected.len(), "{checked:?}");
    for (found, expected) in checked.iter().zip(expected) {
        assert!(close(*found, expected), "{checked:?}");
    }
    assert!(began.elapsed() < WAIT_MAX, "the others are refused: {:?}", began.elapsed());
    // More are refused at once, and other addresses are served at once.
    let waiting: Vec<_> = (0..3).map(|_| limits.enqueue("a", address(1)).unwrap()).collect();
    assert_eq!(limits.begin("a", address(1)).await.err(), Some(TooManyAttempts));
    assert_eq!(fail(&limits, "a", address(2)).await, Duration::ZERO);
    drop(waiting);
    assert_eq!(limits.state().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn many_addresses_get_few_guesses_for_one_user_and_do_not_keep_the_user_out() {
    let limits = Arc::new(LoginLimits::default());
    limits.begin("root", address(200)).await.unwrap().succeeded();
    for _ in 0..10 {
        fail(&limits, "root", None).await;
    }
    let began = Instant::now();
    let mut burst = JoinSet::new();
    for last in 0..100 {
        let limits = Arc::clone(&limits);
        burst.spawn(async move { limits.begin("root", address(last)).await.is_ok() });
    }
    tokio::task::yield_now().await;
    // From where the user has logged in before.
    assert_eq!(fail(&limits, "root", address(200)).await, Duration::ZERO);
    let checked = burst.join_all().await.into_iter().filter(|checked| *checked).count();
    assert!(began.elapsed() <= WAIT_MAX);
    let most = 4 * USER_ATTEMPTS_AT_ONCE;
    assert!((1..=most).contains(&checked), "{checked}");
}

#[tokio::test(start_paused = true)]
async fn many_right_passwords_at_once_are_not_delayed() {
    let limits = Arc::new(LoginLimits::default());
    let began = Instant::now();
    let mut burst = JoinSet::new();
    for number in 0..500_u16 {
        let limits = Arc::clone(&limits);
        burst.spawn(async move {
            let attempt = limits.begin("service", address((number % 4) as u8)).await.unwrap();
            attempt.succeeded();
        });
    }
    burst.join_all().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(limits.state().addresses.is_empty(), "nothing is kept of addresses without failures");
}

/// A client that hangs up does not get around the limits.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_cancelled_counts() {
    let limits = Arc::new(LoginLimits::default());
    for _ in 0..4 {
        drop(limits.begin("a", address(1)).await.unwrap());
    }
    // While it waits, it is not one.
    let waiting = timeout(Duration::from_millis(10), limits.begin("a", address(1))).await;
    assert!(waiting.is_err());
    let waited = fail(&limits, "a", address(1)).await;
    assert!(close(waited, Duration::from_millis(190)), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn queues_are_bounded_and_still_open_for_other_addresses() {
    let limits = Arc::new(LoginLimits::default());
    let mut waiting = Vec::new();
    for last in 1..=4 {
        for number in 0..ADDRESS_PENDING_MAX {
            waiting.push(limits.enqueue(&format!("{last}-{number}"), address(last)).unwrap());
        }
        assert!(limits.enqueue("another", address(last)).is_err());
    }
    assert_eq!(waiting.len(), PENDING_MAX);
    let first = limits.enqueue("user", address(5)).unwrap();
    assert!(limits.enqueue("user", address(5)).is_err());
    assert!(limits.enqueue("user", address(6)).is_ok());
    drop((first, waiting));
    assert_eq!(limits.state().pending, 0);
    assert!(limits.state().users.is_empty() && limits.state().addresses.is_empty());
}

#[test]
fn ipv6_addresses_of_one_network_are_one() {
    let parse = |text: &str| network_of(text.parse().unwrap());
    assert_eq!(parse("2001:db8:1:2::1"), parse("2001:db8:1:2:ffff::9"));
    assert_ne!(parse("2001:db8:1:2::1"), parse("2001:db8:1:3::1"));
    assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
    assert_ne!(parse("10.0.0.1"), parse("10.0.0.2"));
}
