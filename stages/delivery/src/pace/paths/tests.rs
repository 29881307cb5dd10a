#![allow(clippy::unwrap_used)]
use super::*;
use crate::pace::rate::FLOOR;
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(72 * 3_600);

fn path(domain: &str) -> Path {
    Path::new(Uuid::nil(), "acme.example", domain)
}

fn paths(limit: usize) -> (Paths, Instant) {
    (Paths::new(limit, None, PATIENCE), Instant::now())
}

/// The receiver defers until mail to it is put off.
fn defer(paths: &mut Paths, path: &Path, now: Instant) {
    while paths.start(path, Turn::Again, false, now) == Start::Go {
        paths.finish(path, Feedback::Deferred, now, now);
    }
}

#[test]
fn no_more_than_the_limit_start_at_once_to_one_receiver() {
    let (mut paths, now) = paths(2);
    let mut start = |domain| paths.start(&path(domain), Turn::New, false, now);
    assert_eq!([start("gmail.com"), start("googlemail.com"), start("gmail.com")], [Start::Go, Start::Go, Start::Busy]);
    assert_eq!(start("b.example"), Start::Go);
    paths.finish(&path("googlemail.com"), Feedback::Good, now, now);
    assert_eq!(paths.start(&path("gmail.com"), Turn::New, false, now), Start::Go);
}

#[test]
fn a_receiver_that_defers_one_sending_domain_is_not_held_for_another() {
    let (mut paths, now) = paths(9);
    defer(&mut paths, &path("a.example"), now);
    assert!(paths.is_held(&path("a.example")));
    let other = Path::new(Uuid::nil(), "other.example", "a.example");
    assert!(!paths.is_held(&other));
    assert_eq!(paths.start(&other, Turn::New, false, now), Start::Go);
}

#[test]
fn what_a_barren_receiver_refused_before_is_given_up_after_its_time_and_what_is_new_waits() {
    let (mut paths, now) = paths(9);
    let path = path("a.example");
    defer(&mut paths, &path, now);
    let later = now + PATIENCE - Duration::from_secs(1);
    defer(&mut paths, &path, later);
    assert!(matches!(paths.start(&path, Turn::Again, true, later), Start::Later(_) | Start::Far(_)));
    let over = now + PATIENCE + Duration::from_secs(1);
    defer(&mut paths, &path, over);
    assert!(matches!(paths.start(&path, Turn::Again, false, over), Start::Later(_) | Start::Far(_)));
    assert_eq!(paths.start(&path, Turn::Again, true, over), Start::RetryDeadlinePassed);
}

#[test]
fn what_changed_is_told_once_and_again_if_it_could_not_be_told() {
    let (mut paths, now) = paths(9);
    defer(&mut paths, &path("a.example"), now);
    let news = paths.news(10);
    assert_eq!(news.len(), 1);
    assert!(news[0].held.is_some());
    assert_eq!(paths.news(10), []);
    paths.untold(&news);
    assert_eq!(paths.news(10), news);
}

#[test]
fn what_was_told_holds_a_path_that_was_never_used_here() {
    let (mut one, now) = paths(9);
    defer(&mut one, &path("a.example"), now);
    let told = one.news(1).pop().unwrap();
    let mut two = Paths::new(9, None, PATIENCE);
    two.adopt(&told.path, told.held.unwrap(), now);
    assert!(matches!(two.start(&path("a.example"), Turn::New, false, now), Start::Later(_)));
    assert_eq!(two.news(1), [], "what was heard is not told again");
}

#[test]
fn a_path_that_was_not_used_for_long_is_forgotten() {
    let (mut paths, now) = paths(9);
    defer(&mut paths, &path("a.example"), now);
    paths.news(10);
    paths.tidy(now + Duration::from_secs(60));
    assert_eq!(paths.remembered(), 1);
    paths.tidy(now + FORGOTTEN_AFTER + Duration::from_secs(1));
    assert_eq!(paths.remembered(), 0);
}

#[test]
fn however_many_receivers_defer_memory_stays_bounded() {
    let (mut paths, now) = paths(9);
    for number in 0..2 * MAX_PATHS {
        defer(&mut paths, &path(&format!("d{number}.example")), now + Duration::from_millis(number as u64));
    }
    assert!(paths.remembered() <= MAX_PATHS, "{}", paths.remembered());
}

#[test]
fn the_levels_are_those_of_families() {
    let (mut paths, now) = paths(9);
    for domain in ["gmail.com", "a.example", "b.example"] {
        defer(&mut paths, &path(domain), now);
    }
    let levels = paths.levels(now);
    assert_eq!((levels["gmail"].held, levels["other"].held, levels.len()), (1, 2, 2));
    assert!(levels["gmail"].limit >= FLOOR && levels["gmail"].waiting > 0.0);
}

proptest! {
    #[test]
    fn what_ends_is_forgotten_and_the_limit_always_holds(steps in proptest::collection::vec((0usize..4, any::<bool>()), 0..200)) {
        let (mut paths, now) = paths(3);
        let mut open = [0usize; 4];
        for (domain, start) in steps {
            let path = path(&format!("d{domain}.example"));
            if start && paths.start(&path, Turn::New, false, now) == Start::Go {
                open[domain] += 1;
            } else if !start && open[domain] > 0 {
                paths.finish(&path, Feedback::Good, now, now);
                open[domain] -= 1;
            }
            prop_assert!(open.iter().all(|&count| count <= 3));
            prop_assert_eq!(paths.remembered(), open.iter().filter(|&&count| count > 0).count());
        }
    }
}
