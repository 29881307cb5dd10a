use super::*;
use crate::pace::rate::FLOOR;
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(72 * 3_600);

fn key(domain: &str) -> ThrottleKey {
    ThrottleKey::new(Uuid::nil(), "acme.example", domain)
}

fn throttles(limit: usize) -> (Throttles, Instant) {
    (Throttles::new(limit, None, PATIENCE), Instant::now())
}

/// The receiver defers until mail to it is put off.
fn defer(throttles: &mut Throttles, key: &ThrottleKey, now: Instant) {
    while throttles.start(key, None, PacePriority::Retry, false, now) == Ok(true) {
        throttles.finish(key, None, Feedback::Deferred, now, now);
    }
}

#[test]
fn no_more_than_the_limit_start_at_once_to_one_receiver() {
    let (mut throttles, now) = throttles(2);
    let mut start = |domain| throttles.start(&key(domain), None, PacePriority::New, false, now);
    assert_eq!([start("gmail.com"), start("googlemail.com"), start("gmail.com")], [Ok(true), Ok(true), Ok(false)]);
    assert_eq!(start("b.example"), Ok(true));
    throttles.finish(&key("googlemail.com"), None, Feedback::Good, now, now);
    assert_eq!(throttles.start(&key("gmail.com"), None, PacePriority::New, false, now), Ok(true));
}

#[test]
fn mail_of_a_tenants_connection_is_counted_by_itself() {
    let (mut throttles, now) = throttles(1);
    let (one, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
    let mut start = |over| throttles.start(&key("a.example"), over, PacePriority::New, false, now);
    assert_eq!([start(one), start(one), start(other), start(None)], [Ok(true), Ok(false), Ok(true), Ok(true)]);
    throttles.finish(&key("a.example"), one, Feedback::Silent, now, now);
    let mut start = |over| throttles.start(&key("a.example"), over, PacePriority::New, false, now);
    assert_eq!([start(None), start(one)], [Ok(false), Ok(true)]);
}

#[test]
fn prompt_mail_starts_beside_as_many_campaigns_as_may_be() {
    let (mut throttles, now) = throttles(1);
    let mut start = |turn| throttles.start(&key("a.example"), None, turn, false, now);
    assert_eq!(
        [start(PacePriority::New), start(PacePriority::Prompt), start(PacePriority::Retry)],
        [Ok(true), Ok(true), Ok(false)]
    );
}

#[test]
fn a_deferral_slows_only_its_sending_domain() {
    let (mut throttles, now) = throttles(9);
    defer(&mut throttles, &key("a.example"), now);
    assert!(throttles.is_limited(&key("a.example")));
    let other = ThrottleKey::new(Uuid::nil(), "other.example", "a.example");
    assert!(!throttles.is_limited(&other));
    assert_eq!(throttles.start(&other, None, PacePriority::New, false, now), Ok(true));
}

#[test]
fn deferred_mail_expires_and_new_mail_waits() {
    let (mut throttles, now) = throttles(9);
    let key = key("a.example");
    defer(&mut throttles, &key, now);
    let later = now + PATIENCE - Duration::from_secs(1);
    defer(&mut throttles, &key, later);
    assert!(matches!(
        throttles.start(&key, None, PacePriority::Retry, true, later),
        Err(PaceRefusal::Throttled(_) | PaceRefusal::QueueFull(_))
    ));
    let over = now + PATIENCE + Duration::from_secs(1);
    defer(&mut throttles, &key, over);
    assert!(matches!(
        throttles.start(&key, None, PacePriority::Retry, false, over),
        Err(PaceRefusal::Throttled(_) | PaceRefusal::QueueFull(_))
    ));
    assert_eq!(throttles.start(&key, None, PacePriority::Retry, true, over), Err(PaceRefusal::RetryDeadlinePassed));
}

#[test]
fn a_change_is_published_once_or_until_it_succeeds() {
    let (mut throttles, now) = throttles(9);
    defer(&mut throttles, &key("a.example"), now);
    let changes = throttles.take_changes(10);
    assert_eq!(changes.len(), 1);
    assert!(changes[0].reduced.is_some());
    assert_eq!(throttles.take_changes(10), []);
    throttles.return_changes(&changes);
    assert_eq!(throttles.take_changes(10), changes);
}

#[test]
fn a_published_rate_limits_an_unused_throttle_key() {
    let (mut one, now) = throttles(9);
    defer(&mut one, &key("a.example"), now);
    let reported = one.take_changes(1).pop().unwrap();
    let mut two = Throttles::new(9, None, PATIENCE);
    two.adopt(&reported.key, reported.reduced.unwrap(), now);
    assert!(matches!(
        two.start(&key("a.example"), None, PacePriority::New, false, now),
        Err(PaceRefusal::Throttled(_))
    ));
    assert_eq!(two.take_changes(1), [], "what was heard is not told again");
}

#[test]
fn a_path_that_was_not_used_for_long_is_forgotten() {
    let (mut throttles, now) = throttles(9);
    defer(&mut throttles, &key("a.example"), now);
    throttles.take_changes(10);
    throttles.evict_idle(now + Duration::from_secs(60));
    assert_eq!(throttles.tracked(), 1);
    throttles.evict_idle(now + REDUCED_LIFE + Duration::from_secs(1));
    assert_eq!(throttles.tracked(), 0);
}

#[test]
fn however_many_receivers_defer_memory_stays_bounded() {
    let (mut throttles, now) = throttles(9);
    for number in 0..2 * MAX_THROTTLES {
        defer(&mut throttles, &key(&format!("d{number}.example")), now + Duration::from_millis(number as u64));
    }
    assert!(throttles.tracked() <= MAX_THROTTLES, "{}", throttles.tracked());
}

#[test]
fn the_levels_are_those_of_families() {
    let (mut throttles, now) = throttles(9);
    for domain in ["gmail.com", "a.example", "b.example"] {
        defer(&mut throttles, &key(domain), now);
    }
    let levels = throttles.levels(now);
    assert_eq!((levels["gmail"].reduced, levels["other"].reduced, levels.len()), (1, 2, 2));
    assert!(levels["gmail"].limit >= FLOOR && levels["gmail"].waiting > 0.0);
}

proptest! {
    #[test]
    fn idle_throttles_are_evicted_and_the_limit_is_kept(steps in proptest::collection::vec((0usize..4, any::<bool>()), 0..200)) {
        let (mut throttles, now) = throttles(3);
        let mut open = [0usize; 4];
        for (domain, start) in steps {
            let key = key(&format!("d{domain}.example"));
            if start && throttles.start(&key, None, PacePriority::New, false, now) == Ok(true) {
                open[domain] += 1;
            } else if !start && open[domain] > 0 {
                throttles.finish(&key, None, Feedback::Good, now, now);
                open[domain] -= 1;
            }
            prop_assert!(open.iter().all(|&count| count <= 3));
            prop_assert_eq!(throttles.tracked(), open.iter().filter(|&&count| count > 0).count());
        }
    }
}
