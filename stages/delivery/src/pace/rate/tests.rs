use super::*;
use proptest::prelude::*;
use rstest::rstest;

const SECOND: Duration = Duration::from_secs(1);

/// A path on which so many mails a second flow, and its clock, after a few seconds.
fn flowing(per_second: u32) -> (Rate, Instant) {
    let (mut rate, mut now) = (Rate::new(None, Instant::now()), Instant::now());
    for _ in 0..3 * per_second {
        rate.record_answer(false, now, 0, now);
        now += SECOND / per_second;
    }
    (rate, now)
}

/// The receiver defers until it was cut so often.
fn cut(rate: &mut Rate, now: Instant, times: usize) -> Instant {
    let mut now = now;
    for _ in 0..times {
        while !rate.record_answer(true, now, 0, now) {
            now += Duration::from_millis(10);
        }
        now += Duration::from_millis(10);
    }
    now
}

/// A minute in which the receiver takes whatever may go.
fn minute_of_good_answers(rate: &mut Rate, mut now: Instant) -> Instant {
    for _ in 0..600 {
        while rate.limit().is_some() && rate.admit(PacePriority::Retry, now) {
            rate.record_answer(false, now, 0, now);
        }
        now += Duration::from_millis(100);
    }
    now
}

#[test]
fn the_first_deferrals_halve_the_throughput() {
    let (mut rate, now) = flowing(100);
    assert_eq!(rate.limit(), None);
    cut(&mut rate, now, 1);
    let limit = rate.limit().unwrap();
    assert!((45.0..=55.0).contains(&limit), "{limit}");
}

#[test]
fn each_further_deferral_halves_it_down_to_the_floor() {
    let (mut rate, now) = flowing(100);
    let mut now = cut(&mut rate, now, 1);
    let mut before = rate.limit().unwrap();
    for _ in 0..20 {
        now = cut(&mut rate, now, 1);
        let limit = rate.limit().unwrap();
        assert!(limit <= (before / 2.0).max(FLOOR) + 1e-9, "{limit} after {before}");
        before = limit;
    }
    assert_eq!(rate.limit(), Some(FLOOR));
}

#[rstest]
#[case::one_of_few(1, 3, false)]
#[case::a_tenth(1, 10, false)]
#[case::two_of_few(2, 4, true)]
#[case::two_of_nineteen(2, 19, true)]
#[case::a_tenth_of_many(4, 40, false)]
#[case::more_than_a_tenth_of_many(5, 40, true)]
fn a_tenth_of_the_answers_may_be_deferrals(#[case] deferred: u32, #[case] answers: u32, #[case] slows: bool) {
    let now = Instant::now();
    let mut rate = Rate::new(None, now);
    // The deferrals last, so that they are judged among all.
    for _ in 0..answers - deferred {
        rate.record_answer(false, now, 0, now);
    }
    let was_cut = (0..deferred).any(|_| rate.record_answer(true, now, 0, now));
    assert_eq!(was_cut, slows);
}

#[test]
fn transactions_that_began_before_the_cut_do_not_cut_again() {
    let (mut rate, now) = flowing(100);
    let later = cut(&mut rate, now, 1);
    let limit = rate.limit();
    for _ in 0..100 {
        assert!(!rate.record_answer(true, now - SECOND, 0, later));
    }
    assert_eq!(rate.limit(), limit);
}

#[test]
fn mail_in_flight_counts_as_throughput() {
    let now = Instant::now();
    let mut rate = Rate::new(None, now);
    while !rate.record_answer(true, now, 200, now) {}
    assert!(rate.limit().unwrap() >= 100.0);
}

#[test]
fn good_answers_raise_the_rate_until_it_is_unlimited() {
    let (mut rate, now) = flowing(100);
    let mut now = cut(&mut rate, now, 15);
    assert_eq!(rate.limit(), Some(FLOOR));
    let mut limits = vec![FLOOR];
    while let Some(limit) = rate.limit() {
        now = minute_of_good_answers(&mut rate, now);
        assert!(limits.last().is_some_and(|last| *last <= limit));
        limits.push(limit);
        assert!(limits.len() < 60, "{limits:?}");
    }
}

#[test]
fn bulk_mail_keeps_to_the_pace_and_prompt_mail_may_borrow() {
    let (mut rate, now) = flowing(100);
    let mut now = cut(&mut rate, now, 4);
    let limit = rate.limit().unwrap();
    assert!(!rate.admit(PacePriority::New, now));
    assert!(rate.admit(PacePriority::Prompt, now));
    let mut went = 0;
    for _ in 0..100 {
        now += Duration::from_millis(100);
        while rate.admit(PacePriority::Retry, now) {
            went += 1;
        }
    }
    assert!(f64::from(went) <= limit * 10.0, "{went} in ten seconds at {limit} a second");
    assert!(f64::from(went) >= limit * 10.0 - 3.0, "{went} in ten seconds at {limit} a second");
}

#[test]
fn new_mail_waits_behind_what_was_put_off() {
    let (mut rate, now) = flowing(100);
    let now = cut(&mut rate, now, 1);
    let wait = rate.slot(now).unwrap();
    let then = now + wait - Duration::from_millis(1);
    assert!(!rate.admit(PacePriority::New, then));
    assert!(rate.admit(PacePriority::Retry, then));
    assert!(rate.admit(PacePriority::New, now + wait));
}

#[test]
fn slots_follow_the_rate_in_chunks_of_seconds() {
    let (mut rate, now) = flowing(100);
    let now = cut(&mut rate, now, 1);
    let limit = rate.limit().unwrap();
    let waits: Vec<f64> = (0..500).map(|_| rate.slot(now).unwrap().as_secs_f64()).collect();
    assert!(waits.is_sorted());
    let last = waits.last().unwrap();
    assert!((*last - 500.0 / limit).abs() <= CHUNK.as_secs_f64() + 0.1, "{last}");
    let mut distinct = waits.clone();
    distinct.dedup();
    assert!(distinct.len() <= 6, "{distinct:?}");
}

#[test]
fn no_slot_is_further_than_the_trouble_is_old_within_bounds() {
    let (mut rate, now) = flowing(10);
    let now = cut(&mut rate, now, 10);
    assert_eq!(rate.limit(), Some(FLOOR));
    let furthest = |rate: &mut Rate, now| (0..1_000).find_map(|_| rate.slot(now).err()).unwrap();
    assert_eq!(furthest(&mut rate, now), HORIZON.0);
    let later = now + Duration::from_secs(600);
    let at_later = furthest(&mut rate, later);
    assert!((600..=601).contains(&at_later.as_secs()), "{at_later:?}");
    assert_eq!(furthest(&mut rate, now + Duration::from_secs(100_000)), HORIZON.1);
}

#[test]
fn what_another_process_found_out_is_taken_over_once() {
    let (mut reported, now) = flowing(100);
    let now = cut(&mut reported, now, 3);
    let reduced = reported.reduced().unwrap();
    let mut rate = Rate::new(None, now);
    rate.adopt(reduced, now);
    assert_eq!(rate.limit(), Some(reduced.limit));
    // Heard again later, it does not undo what was learnt since.
    let mut later = now;
    while rate.limit().is_some() {
        later = minute_of_good_answers(&mut rate, later);
    }
    rate.adopt(reduced, later);
    assert_eq!(rate.limit(), None);
}

#[test]
fn refusal_time_counts_from_the_last_good_answer() {
    let (mut rate, now) = flowing(100);
    let now = cut(&mut rate, now, 3);
    let hour = Duration::from_secs(3_600);
    assert!(rate.refused_for(now + hour) >= hour);
    rate.record_answer(false, now + hour, 0, now + hour);
    assert_eq!(rate.refused_for(now + hour), Duration::ZERO);
    assert_eq!(rate.refused_for(now + 2 * hour), hour);
}

#[test]
fn a_ceiling_limits_a_receiver_that_never_defers() {
    let mut now = Instant::now();
    let mut rate = Rate::new(Some(10.0), now);
    let mut went = 0;
    for _ in 0..1_000 {
        while rate.admit(PacePriority::New, now) {
            rate.record_answer(false, now, 0, now);
            went += 1;
        }
        now += Duration::from_millis(100);
    }
    assert!((990..=1_041).contains(&went), "{went}");
}

/// What may happen to a path.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Answer { is_deferral: bool, in_flight: usize },
    Time(u64),
    Ask(PacePriority),
    Slot,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (any::<bool>(), 0usize..2_000).prop_map(|(is_deferral, in_flight)| Happening::Answer { is_deferral, in_flight }),
        2 => (0u64..5_000).prop_map(Happening::Time),
        2 => prop_oneof![Just(PacePriority::New), Just(PacePriority::Retry), Just(PacePriority::Prompt)].prop_map(Happening::Ask),
        1 => Just(Happening::Slot),
    ]
}

proptest! {
    #[test]
    fn the_rate_and_its_slots_stay_within_their_bounds(
        happenings in proptest::collection::vec(happening(), 0..300),
        ceiling in proptest::option::of(0.1f64..1_000.0),
    ) {
        let mut now = Instant::now();
        let mut rate = Rate::new(ceiling, now);
        for happening in happenings {
            match happening {
                Happening::Answer { is_deferral, in_flight } => {
                    rate.record_answer(is_deferral, now, in_flight, now);
                }
                Happening::Time(milliseconds) => now += Duration::from_millis(milliseconds),
                Happening::Ask(turn) => {
                    rate.admit(turn, now);
                }
                Happening::Slot => {
                    let wait = rate.slot(now).unwrap_or_else(|furthest| furthest);
                    prop_assert!(wait <= HORIZON.1);
                }
            }
            if let Some(limit) = rate.limit() {
                prop_assert!(limit >= FLOOR && limit <= ceiling.unwrap_or(f64::INFINITY), "{limit}");
            }
            prop_assert!(rate.waiting(now).is_finite());
        }
    }

    #[test]
    fn from_wherever_it_fell_a_path_recovers(
        happenings in proptest::collection::vec(happening(), 0..100),
        ceiling in proptest::option::of(1.0f64..100.0),
    ) {
        let mut now = Instant::now();
        let mut rate = Rate::new(ceiling, now);
        for happening in happenings {
            match happening {
                Happening::Answer { is_deferral, in_flight } => {
                    rate.record_answer(is_deferral, now, in_flight, now);
                }
                Happening::Time(milliseconds) => now += Duration::from_millis(milliseconds),
                Happening::Ask(_) | Happening::Slot => {}
            }
        }
        for _ in 0..60 {
            if rate.reduced().is_none() {
                break;
            }
            now = minute_of_good_answers(&mut rate, now);
        }
        prop_assert_eq!(rate.limit(), ceiling);
    }
}
